extern "C" void run(float* y, const float* a, const float* b, long n) {
    float sum = 0;
    for (long i = 0; i < n; ++i) {
        const float d = a[i] - b[i];
        sum += d * d;
    }
    *y = sum / n;
}
