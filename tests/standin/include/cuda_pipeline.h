/* Copies from global to shared memory; see pipeline.cpp. */
#ifndef STANDIN_CUDA_PIPELINE_H
#define STANDIN_CUDA_PIPELINE_H

#include "cuda_runtime.h"

/* Bytes is 4, 8 or 16; the last zero_fill of them become zeros. */
void standin_pipeline_copy(void *shared, const void *global, size_t bytes, size_t zero_fill);
void standin_pipeline_commit(void);
void standin_pipeline_wait(size_t newer);

static inline void __pipeline_memcpy_async(void *shared, const void *global, size_t bytes, size_t zero_fill = 0)
{
    standin_pipeline_copy(shared, global, bytes, zero_fill);
}
static inline void __pipeline_commit()
{
    standin_pipeline_commit();
}
/* Waits for all but the `newer` groups committed last. */
static inline void __pipeline_wait_prior(size_t newer)
{
    standin_pipeline_wait(newer);
}

#endif
