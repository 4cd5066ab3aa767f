/* Fixed-width integers where there is no standard library: NVRTC. */
#ifndef BLINK_FIXED_INTS_H
#define BLINK_FIXED_INTS_H

#ifdef __CUDACC_RTC__
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;
typedef int int32_t;
typedef long int64_t;
#else
#include <cstdint>
#endif

#endif  // BLINK_FIXED_INTS_H
