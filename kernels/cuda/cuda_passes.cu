/* Decode passes as CUDA graphs. The first pass of a shape runs as it is (which also loads its kernels), the second one
   is recorded, later ones are one launch. What a pass reads of its batch lies in device memory, and its launches depend
   on the shape and the bucket of the context alone, so a recorded one serves any batch of the shape. */
#include "kernels/cuda/cuda.h"

#include <stdlib.h>
#include <string.h>

enum { PASSES = 32 }; /* the one used longest ago makes room */

struct pass {
    struct device_pass shape; /* context: its bucket */
    const char *workspace;    /* of the model whose pass it is: several can take turns on a device */
    bool known;
    cudaGraphExec_t graph;   /* NULL until recorded */
    unsigned long long used; /* when */
};

struct cuda_passes {
    struct pass pass[PASSES];
    struct pass *recording;
    unsigned long long clock;
};

enum status cuda_passes_open(struct cuda_device *cuda, struct error *error)
{
    cuda->passes = static_cast<struct cuda_passes *>(calloc(1, sizeof *cuda->passes));
    return cuda->passes ? STATUS_OK : error_set(error, STATUS_DEVICE, "device cuda: out of host memory");
}

static void forget(struct pass *pass)
{
    if (pass->graph)
        cudaGraphExecDestroy(pass->graph);
    memset(pass, 0, sizeof *pass);
}

void cuda_passes_forget(struct cuda_device *cuda)
{
    for (int i = 0; i < PASSES; i++)
        forget(&cuda->passes->pass[i]);
}

void cuda_passes_close(struct cuda_device *cuda)
{
    if (cuda->passes)
        cuda_passes_forget(cuda);
    free(cuda->passes);
    cuda->passes = NULL;
}

static bool same_shape(const struct device_pass *a, const struct device_pass *b)
{
    return a->rows == b->rows && a->sequences == b->sequences && a->logits_rows == b->logits_rows &&
           a->context == b->context && a->window == b->window && a->mass == b->mass && a->kv_dtype == b->kv_dtype &&
           a->logits == b->logits;
}

/* The pass of this shape in this workspace, or else the place for it. */
static struct pass *find(struct cuda_passes *passes, const struct device_pass *shape, const char *workspace)
{
    struct pass *oldest = &passes->pass[0];
    for (int i = 0; i < PASSES; i++) {
        struct pass *pass = &passes->pass[i];
        if (pass->known && pass->workspace == workspace && same_shape(&pass->shape, shape))
            return pass;
        if (pass->used < oldest->used)
            oldest = pass;
    }
    forget(oldest);
    oldest->shape = *shape;
    oldest->workspace = workspace;
    return oldest;
}

enum status cuda_pass_begin(struct device *device, const struct device_pass *shape, int *replayed, struct error *error)
{
    struct cuda_device *cuda = cuda_of(device);
    struct cuda_passes *passes = cuda->passes;
    struct device_pass bucket = *shape;
    *replayed = 0;
    passes->recording = NULL;
    if (!device->graphs || shape->once || shape->rows != shape->sequences)
        return STATUS_OK;
    bucket.context = cuda_context_bucket(shape->context);
    struct pass *pass = find(passes, &bucket, cuda->workspace);
    pass->used = ++passes->clock;
    if (pass->graph) {
        CUDA_TRY(error, cudaGraphLaunch(pass->graph, cuda->stream));
        *replayed = 1;
    } else if (pass->known) {
        CUDA_TRY(error, cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeThreadLocal));
        passes->recording = pass;
    }
    pass->known = true;
    return STATUS_OK;
}

enum status cuda_pass_end(struct device *device, enum status so_far, struct error *error)
{
    struct cuda_device *cuda = cuda_of(device);
    struct pass *pass = cuda->passes->recording;
    cudaGraph_t graph = NULL;
    if (!pass)
        return so_far;
    cuda->passes->recording = NULL;
    cudaError_t code = cudaStreamEndCapture(cuda->stream, &graph);
    if (so_far == STATUS_OK && code == cudaSuccess)
        code = cudaGraphInstantiate(&pass->graph, graph, 0);
    if (graph)
        cudaGraphDestroy(graph);
    if (so_far != STATUS_OK) {
        cudaGetLastError(); /* the failure that was reported already */
        return so_far;
    }
    if (code != cudaSuccess) {
        pass->graph = NULL;
        return cuda_fail(error, code, "recording a decode pass (--graphs off goes without)", __FILE__, __LINE__);
    }
    CUDA_TRY(error, cudaGraphLaunch(pass->graph, cuda->stream));
    return STATUS_OK;
}
