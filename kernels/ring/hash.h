/* The hashes that guard a request.
 *
 * Shared by the scheduler (g++ and NVRTC) and by the frontend's library, so that both sides agree by construction. */
#ifndef BLINK_RING_HASH_H
#define BLINK_RING_HASH_H

#include "ring/layout.h"

namespace blink {

/* One term of words_hash: the hash of a sequence is the wrapping sum of its terms, so threads may sum in any order. */
BLINK_HD uint32_t hash_term(uint32_t word, uint32_t index) {
    uint32_t h = word ^ (index * 0x9E3779B1u + 0x85EBCA6Bu);
    h ^= h >> 16;
    h *= 0x7FEB352Du;
    h ^= h >> 15;
    h *= 0x846CA68Bu;
    h ^= h >> 16;
    return h;
}

/* What bit `bit` of a word leaves in the CRC behind the word. */
BLINK_HD constexpr uint32_t crc32c_term(uint32_t bit) {
    uint32_t crc = 1u << bit;
    for (int b = 0; b < 32; b++) crc = crc >> 1 ^ (0x82F63B78u & (0u - (crc & 1u)));
    return crc;
}

template <uint32_t BIT = 0>
BLINK_HD uint32_t crc32c_terms(uint32_t word) {
    constexpr uint32_t term = crc32c_term(BIT);
    uint32_t own = term & (0u - (word >> BIT & 1u));
    if constexpr (BIT < 31) return own ^ crc32c_terms<BIT + 1>(word);
    else return own;
}

/* CRC-32C (Castagnoli, reflected 0x82F63B78, initial and final complement), as RFC 3720 has it. It is linear, so a word
 * is 32 terms that do not wait for each other, as bit after bit would; a table would sit in device memory. */
BLINK_HD uint32_t crc32c_words(const uint32_t *words, uint32_t n) {
    uint32_t crc = ~0u;
    for (uint32_t i = 0; i < n; i++) crc = crc32c_terms(crc ^ words[i]);
    return ~crc;
}

}  // namespace blink
#endif  // BLINK_RING_HASH_H
