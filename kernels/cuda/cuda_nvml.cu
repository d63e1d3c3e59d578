/* Device memory of this process as the management library (NVML) sees it from outside. The library belongs to the
   driver, so it is looked for when the program runs; what is used of it is declared here, as nvml.h documents it. */
#include "kernels/cuda/cuda.h"

#include <dlfcn.h>
#include <string.h>
#include <unistd.h>

struct process_info { /* nvmlProcessInfo_t of version 2 and 3 */
    unsigned int pid;
    unsigned long long used_bytes; /* all bits 1: not available */
    unsigned int gpu_instance, compute_instance;
};

typedef int init_function(void);
typedef int handle_function(const char *bus, void **device);
typedef int processes_function(void *device, unsigned int *count, struct process_info *infos);

enum { MAX_PROCESSES = 256 };

/* Opened once, never closed: it is asked before and after each measurement. */
static struct {
    int tried;
    handle_function *handle;
    processes_function *processes;
} nvml;

static void open_nvml(void)
{
    nvml.tried = 1;
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return;
    init_function *init = reinterpret_cast<init_function *>(dlsym(library, "nvmlInit_v2"));
    void *handle = dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2");
    void *processes = dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v3");
    if (!init || !handle || !processes || init() != 0)
        return;
    nvml.handle = reinterpret_cast<handle_function *>(handle);
    nvml.processes = reinterpret_cast<processes_function *>(processes);
}

/* In a container the library may name processes by numbers of the host: then none is ours, and nothing is known. */
int cuda_process_bytes(int ordinal, uint64_t *bytes)
{
    static struct process_info infos[MAX_PROCESSES];
    char bus[32];
    void *device;
    unsigned int count = MAX_PROCESSES;
    if (!nvml.tried)
        open_nvml();
    if (!nvml.processes || cudaDeviceGetPCIBusId(bus, (int)sizeof bus, ordinal) != cudaSuccess ||
        nvml.handle(bus, &device) != 0 || nvml.processes(device, &count, infos) != 0)
        return 0;
    for (unsigned int i = 0; i < count; i++) {
        if (infos[i].pid != (unsigned int)getpid() || infos[i].used_bytes == ~0ull)
            continue;
        *bytes = infos[i].used_bytes;
        return 1;
    }
    return 0;
}
