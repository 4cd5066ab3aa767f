/* Words of the ring: how status, doorbell and hints are packed, and the hashes that guard a request.
 *
 * Shared by the scheduler (g++ and NVRTC) and by the frontend's library, so that both sides agree by construction. */
#ifndef BLINK_RING_WORDS_H
#define BLINK_RING_WORDS_H

#include "ring/layout.h"

#ifdef __CUDACC__
#define BLINK_HD __host__ __device__ inline
#else
#define BLINK_HD inline
#endif

namespace blink {

BLINK_HD uint64_t pack_w0(uint32_t gen, uint32_t state, uint32_t reason, uint32_t count) {
    return (uint64_t)(gen & 0xFFFFu) << 48 | (uint64_t)(state & 0xFFu) << 40 | (uint64_t)(reason & 0xFFu) << 32 | count;
}
BLINK_HD uint32_t w0_gen16(uint64_t w0) { return (uint32_t)(w0 >> 48); }
BLINK_HD uint32_t w0_state(uint64_t w0) { return (uint32_t)(w0 >> 40) & 0xFFu; }
BLINK_HD uint32_t w0_reason(uint64_t w0) { return (uint32_t)(w0 >> 32) & 0xFFu; }
BLINK_HD uint32_t w0_count(uint64_t w0) { return (uint32_t)w0; }

BLINK_HD uint64_t pack_w1(uint32_t gen, uint32_t count, uint32_t last, uint32_t prev) {
    return (uint64_t)(last & 0xFFFFFu) << 44 | (uint64_t)(prev & 0xFFFFFu) << 24 | (uint64_t)(count & 0xFFFFu) << 8 |
           (gen & 0xFFu);
}
/* For tokens of HINT_TOKEN_LIMIT and above, which do not fit: the tag of another generation, which no reader takes. */
BLINK_HD uint64_t pack_no_hint(uint32_t gen) { return pack_w1(~gen, 0, 0, 0); }

/* Times of a request that ended: to its first token, and from there to its last. What does not fit is at its limit. */
constexpr uint64_t TIME_LIMIT_US = (1ull << 30) - 1;
BLINK_HD uint64_t pack_w2(uint32_t gen, uint64_t first_us, uint64_t rest_us) {
    if (first_us > TIME_LIMIT_US) first_us = TIME_LIMIT_US;
    if (rest_us > TIME_LIMIT_US) rest_us = TIME_LIMIT_US;
    return (uint64_t)(gen & 0xFu) << 60 | rest_us << 30 | first_us;
}

/* A 32-bit value beside its complement: a doorbell or a cancel that was torn or never written fails the check. */
BLINK_HD uint64_t pack_checked(uint32_t value) { return (uint64_t)(~value) << 32 | value; }
BLINK_HD bool checked_ok(uint64_t word) { return (uint32_t)(word >> 32) == ~(uint32_t)word; }

BLINK_HD uint64_t pack_commit(uint32_t gen, uint32_t seq) { return (uint64_t)seq << 32 | gen; }

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
#endif  // BLINK_RING_WORDS_H
