/* For code that includes CUDA's header of this name. */
#include "cuda_runtime_api.h"
