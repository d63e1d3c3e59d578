/* For code that includes CUDA's header of this name. */
#include "cuda_pipeline.h"
