/* C functions a frontend worker needs on ring memory in its own address space (the shm transport). They are here and
 * not in Python because they must be single loads and stores with acquire and release ordering. */
#include <cstddef>
#include <cstring>

#include "ring/hash.h"

using namespace blink;

namespace {
template <class T>
T load_relaxed(const void *p) {
    return __atomic_load_n(static_cast<const T *>(p), __ATOMIC_RELAXED);
}
}  // namespace

extern "C" {

uint64_t blink_load_acquire(const void *p) {
    return __atomic_load_n(static_cast<const uint64_t *>(p), __ATOMIC_ACQUIRE);
}

void blink_store_release(void *p, uint64_t v) { __atomic_store_n(static_cast<uint64_t *>(p), v, __ATOMIC_RELEASE); }

/* Copies into or out of memory that the other side reads or writes meanwhile: word-sized relaxed accesses, so that a
 * word is never torn. Both pointers 4-byte aligned, bytes a multiple of 4. */
void blink_copy_to_ring(void *ring, const void *src, size_t bytes) {
    auto *d = static_cast<uint32_t *>(ring);
    for (size_t i = 0; i < bytes / 4; i++) {
        uint32_t w;
        std::memcpy(&w, static_cast<const char *>(src) + 4 * i, 4);
        __atomic_store_n(d + i, w, __ATOMIC_RELAXED);
    }
}

void blink_copy_from_ring(void *dst, const void *ring, size_t bytes) {
    auto *s = static_cast<const uint32_t *>(ring);
    for (size_t i = 0; i < bytes / 4; i++) {
        uint32_t w = load_relaxed<uint32_t>(s + i);
        std::memcpy(static_cast<char *>(dst) + 4 * i, &w, 4);
    }
}

/* Copies 64-bit words, each with one acquire load: heads, statuses, commands. */
void blink_copy_words(void *dst, const void *ring, size_t words) {
    auto *s = static_cast<const uint64_t *>(ring);
    for (size_t i = 0; i < words; i++) {
        uint64_t w = __atomic_load_n(s + i, __ATOMIC_ACQUIRE);
        std::memcpy(static_cast<char *>(dst) + 8 * i, &w, 8);
    }
}

uint32_t blink_words_hash(const uint32_t *words, uint32_t n, uint32_t first_index) {
    uint32_t sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += hash_term(words[i], first_index + i);
    return sum;
}

uint32_t blink_crc32c(const uint32_t *words, uint32_t n) { return crc32c_words(words, n); }
}
