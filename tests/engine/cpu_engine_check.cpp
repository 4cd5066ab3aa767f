// libblink_cpu over buffers of exactly the size they need, with more threads than cores: for the sanitizers.
#include <cstdio>
#include <vector>

#include "reference/cpu_engine.cpp"

namespace {

struct alignas(64) Line {
    float values[16];
};

bool linear(void *pool, size_t outputs, size_t inputs, size_t rows) {
    std::vector<float> w(outputs * inputs), x(rows * inputs), y(rows * outputs);
    for (size_t i = 0; i < w.size(); ++i) w[i] = (float)(i % 7);
    for (size_t i = 0; i < x.size(); ++i) x[i] = (float)(i % 5);
    std::vector<Line> panels((outputs + 15) / 16 * inputs);
    float *packed = panels[0].values;
    size_t cut = outputs / 3;
    if (cut) blink_pack(pool, w.data(), cut, inputs, 0, packed);
    blink_pack(pool, w.data() + cut * inputs, outputs - cut, inputs, cut, packed);
    blink_linear(pool, x.data(), rows, inputs, packed, outputs, y.data());
    for (size_t r = 0; r < rows; ++r) {
        for (size_t n = 0; n < outputs; ++n) {
            float sum = 0;
            for (size_t k = 0; k < inputs; ++k) sum += x[r * inputs + k] * w[n * inputs + k];
            if (sum != y[r * outputs + n]) return false;
        }
    }
    return true;
}

bool attend(void *pool, size_t dim, size_t window) {
    size_t heads = 6, kv_heads = 2, entries = 32, tokens = 5;
    std::vector<float> q(tokens * heads * dim), k(entries * kv_heads * dim), v(k.size(), 3.0f), out(q.size());
    std::vector<int32_t> positions{31, 0, 3, 4, 30}, row{0, 0, 0, 0, 0}, table{7, 6, 5, 4, 3, 2, 1, 0};
    blink_attend(pool, q.data(), tokens, heads, kv_heads, dim, k.data(), v.data(), positions.data(), row.data(),
                 table.data(), table.size(), 4, window, out.data());
    for (float o : out) {
        if (o < 2.9999f || o > 3.0001f) return false;  // the mean of equal values
    }
    return true;
}

}  // namespace

int main() {
    void *pool = blink_pool_create(4);
    int loops = 0;
    bool good = true;
    for (size_t outputs : {1, 5, 16, 17, 33, 95}) {
        for (size_t inputs : {1, 7, 33}) {
            for (size_t rows : {1, 2, 6, 7, 13}) good = good && linear(pool, outputs, inputs, rows), ++loops;
        }
    }
    for (size_t dim : {8, 16, 24, 40}) {
        for (size_t window : {0, 1, 3, 64}) good = good && attend(pool, dim, window), ++loops;
    }
    blink_pool_destroy(pool);
    std::printf("%d checks %s\n", loops, good ? "good" : "bad");
    return good ? 0 : 1;
}
