#include <cmath>
#include <vector>

// Two poolings of 2 are one of 4. `w` is [O, C, 3, 3, 3].
extern "C" void run(float* y, const float* x, const float* w, const float* b, long B, long C,
                    long D, long H, long W, long O) {
    const long depth = (D - 2) / 4, height = (H - 2) / 4, width = (W - 2) / 4;
    std::vector<float> acc(O);
    for (long place = 0; place < B * depth * height * width; ++place) {
        const long q = place % width, h = place / width % height;
        const long d = place / width / height % depth, n = place / width / height / depth;
        const auto out = [&](long o) -> float& {
            return y[(((n * O + o) * depth + d) * height + h) * width + q];
        };
        for (long o = 0; o < O; ++o) out(o) = 0;
        for (long at = 0; at < 64; ++at) {
            const long i = d * 4 + at / 16, j = h * 4 + at / 4 % 4, k = q * 4 + at % 4;
            float most = -INFINITY, sum = 0;
            for (long o = 0; o < O; ++o) {
                float s = b[o];
                for (long c = 0; c < C; ++c)
                    for (long t = 0; t < 27; ++t) {
                        const long z = i + t / 9, v = j + t / 3 % 3, u = k + t % 3;
                        s += x[(((n * C + c) * D + z) * H + v) * W + u] * w[(o * C + c) * 27 + t];
                    }
                acc[o] = s;
                most = s > most ? s : most;
            }
            for (long o = 0; o < O; ++o) sum += acc[o] = std::exp(acc[o] - most);
            for (long o = 0; o < O; ++o) out(o) = acc[o] / sum > out(o) ? acc[o] / sum : out(o);
        }
    }
}
