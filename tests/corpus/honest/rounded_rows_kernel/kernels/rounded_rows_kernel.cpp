#include <cmath>
#include <cstdint>

extern "C" void run(uint8_t* q, float* s, float* d, const float* x, long rows, long width) {
    for (long r = 0; r < rows; ++r) {
        const float* in = x + r * width;
        float most = 0;
        for (long c = 0; c < width; ++c) most = std::fabs(in[c]) > most ? std::fabs(in[c]) : most;
        const float scale = most / 127;
        s[r] = scale;
        for (long c = 0; c < width; ++c) {
            float v = std::nearbyint(in[c] / scale);
            v = v < -128 ? -128 : v > 127 ? 127 : v;
            q[r * width + c] = (uint8_t)(int8_t)v;
            d[r * width + c] = v * scale;
        }
    }
}
