// Threads that share loops. The caller works through the loop itself and waits only for pieces that another thread has
// begun, so a thread that the operating system keeps from running costs its help and not the caller's time. Barriers,
// as OpenMP has them at the end of each loop, cost a scheduling delay each when another process needs a core.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

namespace blink {

inline void cpu_relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

class Pool {
  public:
    // `threads` counts the caller.
    explicit Pool(int threads) {
        for (int i = 1; i < threads; ++i) helpers_.emplace_back([this] { help(); });
    }

    ~Pool() {
        stop_.store(true);
        wake_.fetch_add(1);
        wake_.notify_all();
        for (auto &t : helpers_) t.join();
    }

    size_t threads() const { return helpers_.size() + 1; }

    // Calls body(begin, end) for pieces that cover 0 to n; returns when all are done. One caller at a time.
    template <class Body>
    void loop(size_t n, size_t pieces, const Body &body) {
        pieces = pieces < n ? pieces : n;
        if (pieces <= 1 || helpers_.empty()) {
            if (n) body(0, n);
            return;
        }
        auto piece = [&](size_t i) { body(n * i / pieces, n * (i + 1) / pieces); };
        call_ = [](const void *context, size_t i) { (*static_cast<const decltype(piece) *>(context))(i); };
        context_ = &piece;
        done_.store(0, std::memory_order_relaxed);
        claims_.store((uint64_t)pieces << 32, std::memory_order_release);
        wake_.fetch_add(1, std::memory_order_release);
        wake_.notify_all();
        while (work()) {
        }
        for (int spins = 0; done_.load(std::memory_order_acquire) < pieces; ++spins) {
            spins < 4096 ? cpu_relax() : std::this_thread::yield();
        }
    }

  private:
    // Does one piece of the current loop; false where none is left.
    bool work() {
        uint64_t seen = claims_.load(std::memory_order_relaxed);
        if ((uint32_t)seen >= seen >> 32) return false;
        // A claim belongs to the loop that the claimed word describes, even where that began after `seen` was read;
        // and that loop cannot end, nor call_ change, before the claimed piece is done.
        uint64_t claim = claims_.fetch_add(1, std::memory_order_acquire);
        if ((uint32_t)claim >= claim >> 32) return false;
        call_(context_, (uint32_t)claim);
        done_.fetch_add(1, std::memory_order_release);
        return true;
    }

    void help() {
        uint32_t seen = 0;
        while (!stop_.load(std::memory_order_relaxed)) {
            while (work()) {
            }
            // Layers follow each other within tens of microseconds: spin that long before sleeping.
            for (int i = 0; i < 4096 && wake_.load(std::memory_order_relaxed) == seen; ++i) cpu_relax();
            wake_.wait(seen, std::memory_order_acquire);
            seen = wake_.load(std::memory_order_acquire);
        }
    }

    std::vector<std::thread> helpers_;
    void (*call_)(const void *, size_t) = nullptr;
    const void *context_ = nullptr;
    alignas(64) std::atomic<uint64_t> claims_{0};  // pieces << 32 | pieces claimed, or tried to
    alignas(64) std::atomic<size_t> done_{0};
    alignas(64) std::atomic<uint32_t> wake_{0};
    std::atomic<bool> stop_{false};
};

}  // namespace blink
