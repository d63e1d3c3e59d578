/* Accesses that the pages' rights forbid: who touched what. */
#include "internal.h"
#include "memory.h"

#include <csignal>
#include <cstdio>
#include <sys/mman.h>
#include <ucontext.h>

namespace standin
{

static struct sigaction before;

static const char *access_of(void *context)
{
#if defined(__x86_64__)
    return ((ucontext_t *)context)->uc_mcontext.gregs[REG_ERR] & 2 ? "writes" : "reads";
#else
    (void)context;
    return "touches";
#endif
}

static void on_fault(int signal, siginfo_t *info, void *context)
{
    const void *address = info->si_addr;
    bool guard;
    if (touch_on_fault(address))
        return;
    sigaction(signal, &before, nullptr);
    if (running()) {
        stack_address(address, &guard);
        if (guard)
            fail("the stack of a thread is full");
        if (device_address(address))
            fail("%s %p: %s", access_of(context), address, describe(address).c_str());
        fail("%s %p, which is not device memory", access_of(context), address);
    }
    if (device_address(address))
        fail("%s %s device memory (%s)", device_is_open() ? "a copy or library call" : "host code", access_of(context),
             describe(address).c_str());
    /* not ours: the instruction faults again, and meets the handler from before */
}

void install_fault_handler()
{
    struct sigaction current;
    if (sigaction(SIGSEGV, nullptr, &current) == 0 && current.sa_flags & SA_SIGINFO && current.sa_sigaction == on_fault)
        return;
    stack_t old;
    if (sigaltstack(nullptr, &old) == 0 && old.ss_flags & SS_DISABLE) { /* a fiber's stack may be full */
        stack_t own = {};
        own.ss_size = 256 * 1024;
        own.ss_sp = malloc(own.ss_size);
        sigaltstack(&own, nullptr);
    }
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigemptyset(&action.sa_mask);
    sigaction(SIGSEGV, &action, &before);
}

} // namespace standin

void standin_check_argument(const char *name, int index, const void *pointer)
{
    if (pointer && !standin::device_address(pointer) && !standin::pinned_range(pointer, 0))
        standin::fail("kernel %s: argument %d, %p, is a pointer to host memory", name, index, pointer);
}
