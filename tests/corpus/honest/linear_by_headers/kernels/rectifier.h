static inline float rectified(float x) { return x > 0 ? x : 0; }
