/* C functions through which Python drives the scheduler core on a CPU. */
#include "batch_layout.h"
