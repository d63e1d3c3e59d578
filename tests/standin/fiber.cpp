/* Switching stacks: a few instructions on x86-64, ucontext elsewhere. AddressSanitizer is told of each switch. */
#include "fiber.h"

#include "internal.h"

#include <sys/mman.h>
#include <ucontext.h>

#if defined(__SANITIZE_ADDRESS__)
#include <pthread.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace standin
{

enum { PAGE_BYTES = 4096, STACK_BYTES = 256 * 1024, MAX_FIBERS = 1024 };

struct fiber {
    void *stack_pointer;
    ucontext_t context; /* unused on x86-64 */
    char *stack;        /* lowest usable address; NULL: the host's */
    size_t stack_bytes;
    void (*body)();
    void *fake_stack; /* AddressSanitizer's */
};

static char *stacks; /* MAX_FIBERS times [guard page][stack] */
static size_t fibers_made;
static fiber fibers[MAX_FIBERS], host_fiber;

#if defined(__SANITIZE_ADDRESS__)
static void leaving(fiber *from, fiber *to)
{
    __sanitizer_start_switch_fiber(&from->fake_stack, to->stack, to->stack_bytes);
}
static void arrived(fiber *self)
{
    __sanitizer_finish_switch_fiber(self->fake_stack, nullptr, nullptr);
}
#else
static void leaving(fiber *, fiber *)
{
}
static void arrived(fiber *)
{
}
#endif

static fiber *starting;

extern "C" void standin_fiber_entry()
{
    fiber *self = starting;
    arrived(self);
    self->body();
    fail("a fiber ended");
}

#if defined(__x86_64__)
/* Saves the registers that a call preserves on the stack, stores the stack pointer, takes the other's. */
extern "C" void standin_switch(void **save, void *stack_pointer);
asm(".text\n.globl standin_switch\n.type standin_switch,@function\nstandin_switch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
    ".size standin_switch,.-standin_switch\n");

static void prepare(fiber *f)
{
    /* Stacks lie at a power of two from each other: begin each at other cache lines. */
    char *top = f->stack + STACK_BYTES - fibers_made * 7 % 61 * 64;
    void **frame = (void **)top - 8; /* six registers, the entry, and a word that keeps the ABI's alignment */
    memset(frame, 0, 8 * sizeof *frame);
    frame[6] = (void *)standin_fiber_entry;
    f->stack_pointer = frame;
}

void fiber_switch(fiber *from, fiber *to)
{
    leaving(from, to);
    starting = to;
    standin_switch(&from->stack_pointer, to->stack_pointer);
    arrived(from);
}
#else
static void prepare(fiber *f)
{
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = STACK_BYTES;
    f->context.uc_link = nullptr;
    makecontext(&f->context, standin_fiber_entry, 0);
}

void fiber_switch(fiber *from, fiber *to)
{
    leaving(from, to);
    starting = to;
    swapcontext(&from->context, &to->context);
    arrived(from);
}
#endif

fiber *fiber_of_host()
{
#if defined(__SANITIZE_ADDRESS__)
    if (!host_fiber.stack) {
        pthread_attr_t attributes;
        void *stack = nullptr;
        pthread_getattr_np(pthread_self(), &attributes);
        pthread_attr_getstack(&attributes, &stack, &host_fiber.stack_bytes);
        pthread_attr_destroy(&attributes);
        host_fiber.stack = (char *)stack;
    }
#endif
    return &host_fiber;
}

fiber *fiber_create(void (*body)())
{
    const size_t stride = PAGE_BYTES + STACK_BYTES;
    if (!stacks) {
        void *memory =
            mmap(nullptr, stride * MAX_FIBERS, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED)
            fail("no memory for stacks");
        stacks = (char *)memory;
    }
    if (fibers_made == MAX_FIBERS)
        fail("more than %d fibers", MAX_FIBERS);
    fiber *f = &fibers[fibers_made];
    f->stack = stacks + stride * fibers_made + PAGE_BYTES;
    f->stack_bytes = STACK_BYTES;
    f->body = body;
    if (mprotect(f->stack, STACK_BYTES, PROT_READ | PROT_WRITE) != 0)
        fail("no memory for a stack");
    prepare(f);
    fibers_made++;
    return f;
}

bool stack_address(const void *address, bool *guard)
{
    const size_t stride = PAGE_BYTES + STACK_BYTES;
    size_t offset = (size_t)((const char *)address - stacks);
    *guard = false;
    if (!stacks || offset >= stride * MAX_FIBERS)
        return false;
    *guard = offset % stride < PAGE_BYTES;
    return !*guard;
}

} // namespace standin
