/* The extension of a request: stop ids and logit bias that do not fit into its record. */
#ifndef BLINK_SCHED_EXTENSION_H
#define BLINK_SCHED_EXTENSION_H

#include "rtc.h"

#include "ring/layout.h"

namespace blink {

/* A view of the words of extension_words(); empty where the request has none. Trusts n_stop and n_bias, so
 * check_extension() comes before anything but those is read. */
struct Extension {
    const uint32_t *words;
    uint32_t n_stop = 0, n_bias = 0;

    BLINK_HD Extension(const RingRequest &q, const uint32_t *ext) : words(ext) {
        if (q.ext_words != 0) n_stop = ext[0], n_bias = ext[1];
    }
    BLINK_HD uint32_t stop(uint32_t i) const { return words[RING_EXTENSION_STOP + i]; }
    BLINK_HD const uint32_t *pair(uint32_t i) const {
        return words + RING_EXTENSION_STOP + n_stop + RING_EXTENSION_PAIR * i;
    }
    BLINK_HD uint32_t bias_id(uint32_t i) const { return pair(i)[0]; }
    BLINK_HD float bias_value(uint32_t i) const {
        float value;
        __builtin_memcpy(&value, &pair(i)[1], 4);
        return value;
    }
};

}  // namespace blink
#endif  // BLINK_SCHED_EXTENSION_H
