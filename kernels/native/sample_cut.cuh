/* Top-k, top-p and min-p: which tokens keep their weight. */
#ifndef BLINK_NATIVE_SAMPLE_CUT_CUH
#define BLINK_NATIVE_SAMPLE_CUT_CUH

#include "native/sample.cuh"

namespace blink {

/* Collective for the cluster: of the tokens that have a weight, the largest key at which the sum over larger and equal
 * keys reaches `wanted`; 0 if none does. Keys grow with the logit. `limit(e, slack)` is the key at exponent e, or past
 * it in the direction of slack by more than the coarse bins may be off. */
template <class Key, class Value, class Limit>
__device__ u64 select(SampleShared &s, const Row &row, Bound wanted, Cut &cut, Key key, Value value, Limit limit) {
    u64 before = 0;
    clear_bins(s);
    row.each<2>([&](uint32_t, float x) {
        uint32_t bin = row.bin(x);
        if (bin < BINS) add_to_bin(s, bin, value(x));
    });
    uint32_t coarse = find_bin(s, wanted, before);
    if (coarse >= BINS) return 0;
    cut.bin = coarse;
    u64 high = limit(-(double)coarse / BINS_PER_UNIT, 1.0), low = limit(-(double)(coarse + 1) / BINS_PER_UNIT, -1.0);
    for (;;) {
        uint32_t bits = 64 - __clzll(high - low), shift = bits > BIN_BITS ? bits - BIN_BITS : 0;
        clear_bins(s);
        row.each<2>([&](uint32_t, float x) {
            if (row.bin(x) != coarse) return;
            u64 k = key(x);
            if (k <= high && k >= low) add_to_bin(s, (uint32_t)(high - k >> shift), value(x));
        });
        uint32_t bin = find_bin(s, wanted, before);
        high -= (u64)bin << shift;
        if (shift == 0) return high;
        u64 least = high - ((u64)1 << shift) + 1;
        low = least > low && least <= high ? least : low;
    }
}

/* How far an exponent may be from what the coarse bins take it for: they are computed in float32. */
__device__ __forceinline__ double exponent_slack(const Row &row, double exponent) {
    return 1e-6 * (fabs(exponent) + fabs((double)row.top) * row.inverse_temperature) + 1e-9;
}

/* Collective for the cluster. */
__device__ Cut find_cut(SampleShared &s, const Row &row, const LaneParams &params) {
    Cut cut;
    if (params.top_k > 0 && params.top_k < row.vocab)
        cut.order = (uint32_t)select(
            s, row, {0, (double)params.top_k}, cut, [](float x) { return (u64)order_of(x); },
            [](float) { return 1ull; },
            [&](double e, double slack) {
                e += slack * exponent_slack(row, e);
                double x = row.top + e / row.inverse_temperature, most = 3.4e38;
                uint32_t order = order_of((float)fmin(fmax(x, -most), most));
                return (u64)(slack > 0 ? order + 4 : order - 4);
            });
    if (params.top_p < 1) {
        u64 least = select(
            s, row, {fmax((double)params.top_p, 1e-300), 0}, cut, [&](float x) { return row.weight(x); },
            [&](float x) { return kept_weight(row, cut, x); },
            [&](double e, double slack) {
                e += slack * exponent_slack(row, e);
                return (u64)fmin(fmax(exp(fmin(e, 1.0)) * ONE + slack * 4, 0.0), ONE + 4);
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
