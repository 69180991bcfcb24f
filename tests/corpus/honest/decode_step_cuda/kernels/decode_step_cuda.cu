extern "C" __global__ void decode(float* y, const float* q, const float* keys, const float* values,
                                  const long* position, long length, long width) {
  extern __shared__ float shared[];
  float* part = shared;
  float* score = shared + 64;
  const long h = blockIdx.x, me = threadIdx.x;
  const long filled = position[0] + 1 < length ? position[0] + 1 : length;
  float largest = -3.0e38f;
  for (long t = me; t < filled; t += 64) {
    float dot = 0;
    for (long d = 0; d < width; ++d) dot += q[h * width + d] * keys[(h * length + t) * width + d];
    score[t] = dot * rsqrtf(static_cast<float>(width));
    largest = fmaxf(largest, score[t]);
  }
  part[me] = largest;
  __syncthreads();
  for (int step = 32; step > 0; step /= 2) {
    if (me < step) part[me] = fmaxf(part[me], part[me + step]);
    __syncthreads();
  }
  largest = part[0];
  __syncthreads();
  float sum = 0;
  for (long t = me; t < filled; t += 64) sum += score[t] = expf(score[t] - largest);
  part[me] = sum;
  __syncthreads();
  for (int step = 32; step > 0; step /= 2) {
    if (me < step) part[me] += part[me + step];
    __syncthreads();
  }
  sum = part[0];
  for (long d = me; d < width; d += 64) {
    float total = 0;
    for (long t = 0; t < filled; ++t) total += score[t] * values[(h * length + t) * width + d];
    y[h * width + d] = total / sum;
  }
}
