#include <cmath>

extern "C" void run(float* y, const float* x, long n) {
    float lanes[64] = {0};
    double sum = 0;
    const long whole = n / 64 * 64;
    for (long i = 0; i < whole; i += 64)
        for (long j = 0; j < 64; ++j) lanes[j] += x[i + j] * x[i + j];
    for (long j = 0; j < 64; ++j) sum += lanes[j];
    for (long i = whole; i < n; ++i) sum += (double)x[i] * x[i];
    const float norm = std::sqrt(sum);
    for (long i = 0; i < n; ++i) y[i] = x[i] / norm;
}
