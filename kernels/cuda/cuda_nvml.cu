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

struct memory_info { /* nvmlMemory_t */
    unsigned long long total_bytes, free_bytes, used_bytes;
};

typedef int init_function(void);
typedef int handle_function(const char *bus, void **device);
typedef int memory_function(void *device, struct memory_info *info);
typedef int processes_function(void *device, unsigned int *count, struct process_info *infos);

enum { MAX_PROCESSES = 256 };

/* Opened once, never closed: it is asked before and after each measurement. */
static struct {
    int tried;
    handle_function *handle;
    memory_function *memory;
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
    void *memory = dlsym(library, "nvmlDeviceGetMemoryInfo");
    void *processes = dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v3");
    if (!init || !handle || !memory || !processes || init() != 0)
        return;
    nvml.handle = reinterpret_cast<handle_function *>(handle);
    nvml.memory = reinterpret_cast<memory_function *>(memory);
    nvml.processes = reinterpret_cast<processes_function *>(processes);
}

static int find_device(int ordinal, void **device)
{
    char bus[32];
    if (!nvml.tried)
        open_nvml();
    return nvml.processes && cudaDeviceGetPCIBusId(bus, (int)sizeof bus, ordinal) == cudaSuccess &&
           nvml.handle(bus, device) == 0;
}

/* Asking for the bus makes no context. A process without one is not in the driver's list: it uses nothing. */
void cuda_memory_before(int ordinal, struct device_memory *memory)
{
    struct memory_info info;
    void *device;
    memset(memory, 0, sizeof *memory);
    if (!find_device(ordinal, &device) || nvml.memory(device, &info) != 0)
        return;
    memory->free_bytes = info.free_bytes;
    memory->process_known = 1;
}

/* In a container the library may name processes by numbers of the host: then none is ours, and nothing is known. */
int cuda_process_bytes(int ordinal, uint64_t *bytes)
{
    static struct process_info infos[MAX_PROCESSES];
    void *device;
    unsigned int count = MAX_PROCESSES;
    if (!find_device(ordinal, &device) || nvml.processes(device, &count, infos) != 0)
        return 0;
    for (unsigned int i = 0; i < count; i++) {
        if (infos[i].pid != (unsigned int)getpid() || infos[i].used_bytes == ~0ull)
            continue;
        *bytes = infos[i].used_bytes;
        return 1;
    }
    return 0;
}
