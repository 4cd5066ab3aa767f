/* What NVRTC, which compiles without any standard header, lacks. Included before everything else. */
#ifndef BLINK_RTC_H
#define BLINK_RTC_H

#ifdef __CUDACC_RTC__
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;
typedef int int32_t;
typedef long int64_t;
/* By its front end's own constant-expression form, so that the device compiler checks the layouts too. */
#define __builtin_offsetof(type, field) __INTADDR__(&((type *)0)->field)
#define __builtin_memcpy memcpy
#else
#include <cstdint>
#endif

#endif  // BLINK_RTC_H
