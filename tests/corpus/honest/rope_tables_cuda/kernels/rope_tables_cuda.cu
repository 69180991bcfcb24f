extern "C" __global__ void turn(float* y, const float* x, const long* positions,
                                const float* cosine, const float* sine, long pairs, long length,
                                long width) {
  const long pair = blockIdx.x * 128L + threadIdx.x;
  if (pair >= pairs) return;
  const long half = width / 2;
  const long at = positions[pair / half % length] * half + pair % half;
  const float even = x[2 * pair], odd = x[2 * pair + 1];
  y[2 * pair] = even * cosine[at] - odd * sine[at];
  y[2 * pair + 1] = odd * cosine[at] + even * sine[at];
}
