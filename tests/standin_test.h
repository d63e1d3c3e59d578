/* What the tests of the stand-in device share. */
#ifndef KVLAB_TESTS_STANDIN_TEST_H
#define KVLAB_TESTS_STANDIN_TEST_H

#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

extern "C" {
#include <cmocka.h>
}

#include <csignal>
#include <sys/wait.h>
#include <unistd.h>

#include <cuda_runtime.h>
#include <standin.h>

#define LAUNCH(kernel, grid, block, shared_bytes, ...)                                                                 \
    assert_int_equal(standin_launch(#kernel, kernel, grid, block, shared_bytes, nullptr, ##__VA_ARGS__), cudaSuccess)
#define CHECK(call) assert_string_equal(cudaGetErrorName(call), "cudaSuccess")

static const uint64_t SEEDS = 20;

/* A copy of host values on the device, and back. */
template <typename T> T *on_device(const std::vector<T> &values)
{
    T *memory = nullptr;
    CHECK(cudaMalloc(&memory, values.size() * sizeof(T)));
    CHECK(cudaMemcpy(memory, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    return memory;
}
template <typename T> std::vector<T> on_host(const T *memory, size_t count)
{
    std::vector<T> values(count);
    CHECK(cudaMemcpy(values.data(), memory, count * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
}

/* Runs body in a child; what it wrote to stderr, and its wait status. */
static inline std::string run_child(void (*body)(), int *status)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    fflush(nullptr);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(ends[1], 2);
        close(ends[0]);
        signal(SIGSEGV, SIG_DFL);
        body();
        _exit(0);
    }
    close(ends[1]);
    std::string text;
    char buffer[512];
    for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;)
        text.append(buffer, (size_t)n);
    close(ends[0]);
    assert_int_equal(waitpid(child, status, 0), child);
    return text;
}

/* body must be stopped by the stand-in, with a report that holds all of the given texts. */
template <typename... Texts> void assert_caught(void (*body)(), Texts... texts)
{
    int status;
    std::string report = run_child(body, &status);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT)
        fail_msg("not caught (wait status %#x): %s", status, report.c_str());
    for (const char *text : {texts...})
        if (report.find(text) == std::string::npos)
            fail_msg("\"%s\" is not in: %s", text, report.c_str());
}

#endif
