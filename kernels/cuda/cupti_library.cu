/* Finding CUPTI's library at run time; its errors as messages; names of kernels as a reader knows them. */
#include "kernels/cuda/cupti.h"

#ifdef KVLAB_CUPTI
#include <cupti.h>
#endif

#include <cxxabi.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- names ---- */

/* Where the list of parameters begins: the first parenthesis outside of template arguments that is no name's own, as in
   "(anonymous namespace)::". */
static size_t name_length(const char *text)
{
    int depth = 0;
    size_t i = 0;
    for (; text[i]; i++) {
        bool of_name = text[i] == '(' && (i == 0 || text[i - 1] == ':');
        if (text[i] == '(' && depth == 0 && !of_name)
            break;
        depth += text[i] == '<' || text[i] == '(';
        depth -= text[i] == '>' || text[i] == ')';
    }
    return i;
}

void cupti_kernel_name(const char *name, char *text, size_t size)
{
    int status = 0;
    char *plain = abi::__cxa_demangle(name, NULL, NULL, &status);
    const char *from = status == 0 && plain ? plain : name;
    if (strncmp(from, "void ", 5) == 0)
        from += 5;
    size_t length = name_length(from);
    if (length >= size)
        length = size - 1;
    memcpy(text, from, length);
    text[length] = '\0';
    free(plain);
}

#ifndef KVLAB_CUPTI

void *cupti_function(const char *name, struct error *error)
{
    (void)name;
    error_set(error, STATUS_DEVICE, "device cuda: built without CUPTI's headers (cupti.h), so without its records");
    return NULL;
}

enum status cupti_fail(struct error *error, int code, const char *call, const char *file, int line)
{
    return error_set(error, STATUS_DEVICE, "device cuda: %s: CUPTI error %d, at %s:%d", call, code, file, line);
}

#else

#ifdef KVLAB_STANDIN
/* The stand-in has no library of CUPTI's, but the functions in use. */
static void *find(const char *name)
{
    return standin_cupti_function(name);
}
#else
/* Of the toolkit this was built with, or a later one's: beside the libraries that the loader knows of, then where a
   toolkit keeps it. Stays open: its callbacks may come until the process ends. */
static void *open_library(void)
{
    static const char *const folders[] = {"", "/usr/local/cuda/extras/CUPTI/lib64/", "/usr/local/cuda/lib64/",
                                          "/usr/local/cuda/lib/"};
    void *library = NULL;
    for (size_t i = 0; library == NULL && i < 2 * sizeof folders / sizeof folders[0]; i++) {
        char path[128];
        int used = snprintf(path, sizeof path, "%slibcupti.so", folders[i / 2]);
        if (i % 2 == 0)
            snprintf(path + used, sizeof path - (size_t)used, ".%d", CUDART_VERSION / 1000);
        library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    return library;
}

static void *find(const char *name)
{
    static void *library;
    if (library == NULL)
        library = open_library();
    return library ? dlsym(library, name) : NULL;
}
#endif

void *cupti_function(const char *name, struct error *error)
{
    void *function = find(name);
    if (function == NULL)
        error_set(error, STATUS_DEVICE,
                  "device cuda: no %s here: libcupti.so is not installed, or too old; it comes with the CUDA toolkit",
                  name);
    return function;
}

enum status cupti_fail(struct error *error, int code, const char *call, const char *file, int line)
{
    typedef CUptiResult string_function(CUptiResult, const char **);
    struct error ignored;
    const char *text = NULL;
    string_function *string = reinterpret_cast<string_function *>(cupti_function("cuptiGetResultString", &ignored));
    if (string == NULL || string(static_cast<CUptiResult>(code), &text) != CUPTI_SUCCESS)
        text = NULL;
    if (code == CUPTI_ERROR_INSUFFICIENT_PRIVILEGES || code == CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES)
        return error_set(error, STATUS_DEVICE,
                         "device cuda: %s: error %d, %s: the driver does not let this user read counters; load it with "
                         "NVreg_RestrictProfilingToAdminUsers=0, or run with CAP_SYS_ADMIN "
                         "(developer.nvidia.com/ERR_NVGPUCTRPERM)",
                         call, code, text ? text : "");
    return error_set(error, STATUS_DEVICE, "device cuda: %s: error %d, %s, at %s:%d", call, code,
                     text ? text : "unknown to CUPTI", file, line);
}

#endif
