/* For code that includes CUDA's header of this name. */
#include "cublas_v2.h"
