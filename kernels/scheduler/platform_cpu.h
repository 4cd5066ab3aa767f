/* The platform of the scheduler on a CPU: one thread, or several that a barrier joins (tests). */
#ifndef BLINK_PLATFORM_CPU_H
#define BLINK_PLATFORM_CPU_H

#include <time.h>

#include <barrier>

#include "scheduler/state.h"

namespace blink {

struct CpuPlatform {
    Shared *common;
    uint32_t thread = 0, threads = 1;
    std::barrier<> *barrier = nullptr; /* only where threads > 1 */
    uint64_t fixed_now_ns = 0;         /* a test's clock; 0: the real one */

    uint32_t tid() const { return thread; }
    uint32_t nthreads() const { return threads; }
    Shared &shared() const { return *common; }
    void sync() const {
        if (barrier) barrier->arrive_and_wait();
    }
    uint64_t now_ns() const {
        if (fixed_now_ns) return fixed_now_ns;
        timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    }

    template <class T>
    static T ring_load(const T *a) {
        return __atomic_load_n(a, __ATOMIC_RELAXED);
    }
    template <class T>
    static T ring_acquire(const T *a) {
        return __atomic_load_n(a, __ATOMIC_ACQUIRE);
    }
    template <class T>
    static void ring_store(T *a, T v) {
        __atomic_store_n(a, v, __ATOMIC_RELAXED);
    }
    template <class T>
    static void ring_release(T *a, T v) {
#ifdef BLINK_TEST_BREAK_RELEASE /* what the ThreadSanitizer test must notice */
        __atomic_store_n(a, v, __ATOMIC_RELAXED);
#else
        __atomic_store_n(a, v, __ATOMIC_RELEASE);
#endif
    }
    template <class T>
    static T load_acquire(const T *a) {
        return __atomic_load_n(a, __ATOMIC_ACQUIRE);
    }
    template <class T>
    static T add(T *a, T v) {
        return __atomic_fetch_add(a, v, __ATOMIC_RELAXED);
    }
    template <class T>
    static void store(T *a, T v) {
        __atomic_store_n(a, v, __ATOMIC_RELAXED);
    }
    static bool cas(uint32_t *a, uint32_t expected, uint32_t desired) {
        return __atomic_compare_exchange_n(a, &expected, desired, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    }
};

}  // namespace blink
#endif  // BLINK_PLATFORM_CPU_H
