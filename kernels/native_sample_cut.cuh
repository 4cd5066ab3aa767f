/* Top-k, top-p and min-p: which tokens keep their weight. */
#ifndef BLINK_NATIVE_SAMPLE_CUT_CUH
#define BLINK_NATIVE_SAMPLE_CUT_CUH

#include "native_sample.cuh"

namespace blink {

/* The first histogram's bin of a logit that has a weight: less likely tokens are in later ones. */
__device__ __forceinline__ uint32_t coarse_bin(double exponent) { return (uint32_t)(-exponent * BINS_PER_UNIT); }

/* The order of a logit at an exponent, some units off so that rounding leaves nothing out. */
__device__ uint32_t order_near(const Row &row, double exponent, double slack) {
    double x = row.top + exponent / row.inverse_temperature;
    x += slack * (1e-12 * fabs(exponent / row.inverse_temperature) + 1e-12 * fabs((double)row.top));
    double largest = 3.4e38;
    uint32_t order = order_of((float)fmin(fmax(x, -largest), largest) + 0.0f);
    return slack > 0 ? order + 4 : order - 4;
}

/* Collective for the cluster: of the tokens that have a weight, the largest key at which the sum over larger and equal
 * keys, as a double, reaches `bound`; 0 if none does. Keys grow with the logit. A token's key is at most `upper` of its
 * coarse bin and at least `lower`. */
template <class Key, class Value, class Limit>
__device__ u64 select(SampleShared &s, const Row &row, double bound, Key key, Value value, Limit limit) {
    u64 before = 0;
    clear_bins(s);
    row.each([&](uint32_t, float x) {
        double e = row.exponent(x);
        if (e >= WEIGHTLESS) add_to_bin(s, coarse_bin(e), value(x));
    });
    uint32_t coarse = find_bin(s, bound, before);
    if (coarse >= BINS) return 0;
    u64 high = limit(-(double)coarse / BINS_PER_UNIT, 1), low = limit(-(double)(coarse + 1) / BINS_PER_UNIT, -1);
    for (;;) {
        uint32_t bits = 64 - __clzll(high - low), shift = bits > BIN_BITS ? bits - BIN_BITS : 0;
        clear_bins(s);
        row.each([&](uint32_t, float x) {
            double e = row.exponent(x);
            if (e < WEIGHTLESS || coarse_bin(e) != coarse) return;
            u64 k = key(x);
            if (k <= high && k >= low) add_to_bin(s, (uint32_t)(high - k >> shift), value(x));
        });
        uint32_t bin = find_bin(s, bound, before);
        high -= (u64)bin << shift;
        if (shift == 0) return high;
        u64 least = high - ((u64)1 << shift) + 1;
        low = least > low && least <= high ? least : low;
    }
}

/* Collective for the cluster. */
__device__ Cut find_cut(SampleShared &s, const Row &row, const LaneParams &params) {
    Cut cut;
    if (params.top_k > 0 && params.top_k < row.vocab)
        cut.order = (uint32_t)select(
            s, row, params.top_k, [](float x) { return (u64)order_of(x); }, [](float) { return 1ull; },
            [&](double exponent, double slack) { return (u64)order_near(row, exponent, slack); });
    if (params.top_p < 1) {
        u64 sum = 0;
        row.each([&](uint32_t, float x) { sum += kept_weight(row, cut, x); });
        sum = cluster_join(s.join, sum, [](u64 x, u64 y) { return x + y; });
        u64 least = select(
            s, row, fmax((double)params.top_p * (double)sum, 1.0), [&](float x) { return row.weight(x); },
            [&](float x) { return kept_weight(row, cut, x); },
            [](double exponent, double slack) {
                double w = exp(exponent) * ONE + slack * 4;
                return (u64)__double2ll_rn(fmax(w, 0.0));
            });
        cut.weight = least > 1 ? least : 1;
    }
    if (params.min_p > 0) {
        u64 least = (u64)__double2ll_ru((double)params.min_p * ONE);
        cut.weight = least > cut.weight ? least : cut.weight;
    }
    return cut;
}

}  // namespace blink
#endif  // BLINK_NATIVE_SAMPLE_CUT_CUH
