// Marks functions whose arithmetic runs on the CPU and, compiled by nvcc, on a GPU too.
#ifndef THERMOCLINE_COMMON_BASE_HOST_DEVICE_H_
#define THERMOCLINE_COMMON_BASE_HOST_DEVICE_H_

#ifdef __CUDACC__
#define THERMOCLINE_HOST_DEVICE __host__ __device__
#else
#define THERMOCLINE_HOST_DEVICE
#endif

#endif  // THERMOCLINE_COMMON_BASE_HOST_DEVICE_H_
