/* For code that includes CUDA's header of this name. */
#include "vector_types.h"
