/* Opening a device by name. The CUDA device is a shared object beside the binary, so that a run on the CPU does not
   pay for the CUDA libraries in start-up time and resident pages. */
#include "kernels/cpu/cpu.h"

#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char library_name[] = "libkvlab-cuda.so";

typedef enum status cuda_open_function(int ordinal, struct device **device, struct error *error);

/* The folder that holds the running binary, with its last slash; "" where /proc is not mounted. */
static void binary_folder(char folder[PATH_MAX])
{
    ssize_t length = readlink("/proc/self/exe", folder, PATH_MAX - 1);
    folder[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(folder, '/');
    folder[slash ? slash - folder + 1 : 0] = '\0';
}

/* The library stays loaded until the process ends: the device that it opens lives in it. */
static enum status cuda_open(int ordinal, struct device **device, struct error *error)
{
    char folder[PATH_MAX], path[PATH_MAX + sizeof library_name];
    binary_folder(folder);
    snprintf(path, sizeof path, "%s%s", folder, library_name);
    if (access(path, R_OK) != 0)
        return error_set(error, STATUS_DEVICE,
                         "device cuda: %s: %s; kvlab was built without CUDA (no nvcc found); build it where nvcc is "
                         "installed, or use --device cpu",
                         path, strerror(errno));
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return error_set(error, STATUS_DEVICE, "device cuda: cannot load: %s; use --device cpu", dlerror());
    void *symbol = dlsym(library, "kvlab_cuda_open");
    if (!symbol) {
        dlclose(library);
        return error_set(error, STATUS_DEVICE, "device cuda: %s has no kvlab_cuda_open; rebuild it with this kvlab",
                         path);
    }
    cuda_open_function *open_device;
    static_assert(sizeof open_device == sizeof symbol, "POSIX: a function pointer fits a void *");
    memcpy(&open_device, &symbol, sizeof open_device);
    return open_device(ordinal, device, error);
}

/* Is there a driver at all? Asking for it by name costs little, loading the CUDA runtime does not. */
static int driver_present(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (driver)
        dlclose(driver);
    return driver != NULL;
}

/* "cuda" or "cuda:N" with N in plain digits. Returns 0, or -1 for anything else. */
static int parse_cuda(const char *name, int *ordinal)
{
    *ordinal = 0;
    if (strcmp(name, "cuda") == 0)
        return 0;
    if (strncmp(name, "cuda:", 5) != 0 || name[5] == '\0')
        return -1;
    for (const char *digit = name + 5; *digit; digit++) {
        if (*digit < '0' || *digit > '9' || *ordinal > 9999)
            return -1;
        *ordinal = *ordinal * 10 + (*digit - '0');
    }
    return 0;
}

enum status device_open(const char *name, int threads, struct device **device, struct error *error)
{
    *device = NULL;
    if (!name || strcmp(name, "auto") == 0) {
        struct error ignored;
        if (driver_present() && cuda_open(0, device, &ignored) == STATUS_OK)
            return STATUS_OK;
        return cpu_open(threads, device, error);
    }
    if (strcmp(name, "cpu") == 0)
        return cpu_open(threads, device, error);
    int ordinal;
    if (parse_cuda(name, &ordinal) != 0)
        return error_set(error, STATUS_INPUT, "--device %s: unknown device; use cpu, cuda, cuda:N or auto", name);
    return cuda_open(ordinal, device, error);
}
