/* Runs a kernel: block after block, the threads of a block as fibers that change only where they wait. A thread that
   never waits needs no fiber of its own: the next one begins where it ended. */
#include "fiber.h"
#include "internal.h"

#include <map>

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace standin
{

enum state { NEW, RUNNING, READY, WAIT_WARP, WAIT_BLOCK, ENDED };

struct thread {
    uint3 index;
    uint32_t number; /* x + y * blockDim.x + z * blockDim.x * blockDim.y: its warp is number / 32 */
    enum state state;
    fiber *stack;
    /* where it waits, and with what */
    const char *what, *file;
    int line;
    unsigned mask;
    void *operands;
    void (*complete)(void *lanes[32]);
    int predicates; /* what a block barrier returns */
};

struct warp {
    uint32_t live, waiting; /* lanes that have not ended; those that wait for a warp collective */
};

static const launch *current_launch;
static thread *current;
static std::vector<thread> threads;
static std::vector<warp> warps;
static std::vector<uint32_t> order; /* in which the threads begin; the first `begun` have */
static std::vector<thread *> ready; /* may go on */
static std::vector<fiber *> idle;   /* have no thread */
static uint32_t begun, live;        /* live: have not ended, begun or not */
static uint32_t at_barrier;         /* wait for the block */
static int barrier_predicates;      /* sum over them */
static uint64_t launch_count;

const launch *running()
{
    return current_launch;
}

static void make_current(thread *t)
{
    t->state = RUNNING;
    threadIdx = t->index;
    current = t;
}

static bool same_place(const thread &a, const thread &b)
{
    return a.line == b.line && (a.what == b.what || strcmp(a.what, b.what) == 0) &&
           (a.file == b.file || strcmp(a.file, b.file) == 0);
}

/* Nobody can go on. */
[[noreturn]] static void report_barrier()
{
    std::map<std::string, int> places;
    for (const thread &t : threads) {
        std::string place = "have ended";
        if (t.state == WAIT_WARP || t.state == WAIT_BLOCK) {
            place = "wait at " + std::string(t.what) + " (" + t.file + ":" + std::to_string(t.line);
            char mask[32];
            snprintf(mask, sizeof mask, ", mask 0x%08x)", t.mask);
            place += t.state == WAIT_WARP ? mask : ")";
            threadIdx = t.index;
        }
        places[place]++;
    }
    std::string message;
    for (const auto &[place, count] : places)
        message += (message.empty() ? "" : ", ") + std::to_string(count) + " threads " + place;
    fail("a barrier that not all threads reach: %s", message.c_str());
}

static fiber *idle_fiber();

/* The fiber that goes on: of a thread that may, or one that will begin another thread. */
static fiber *choose()
{
    bool more = begun < order.size();
    if (!ready.empty() && (!more || random_below(2))) {
        uint32_t i = random_below((uint32_t)ready.size());
        thread *t = ready[i];
        ready[i] = ready.back();
        ready.pop_back();
        make_current(t);
        return t->stack;
    }
    if (more)
        return idle_fiber();
    if (live == 0)
        return fiber_of_host();
    report_barrier();
}

static void make_ready(thread *t)
{
    t->state = READY;
    ready.push_back(t);
}

/* Waits until another thread has made this one ready. */
static void wait(thread *t)
{
    fiber *next = choose();
    if (next != t->stack)
        fiber_switch(t->stack, next);
}

/* Completes the collective that `t` waits for if all that must come have. */
static bool complete_collective(thread *t, thread *caller)
{
    warp &w = warps[t->number / 32];
    uint32_t needed = t->mask & w.live, first = t->number / 32 * 32;
    if ((w.waiting & needed) != needed)
        return false;
    void *lanes[32] = {};
    for (uint32_t rest = needed; rest; rest &= rest - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(rest);
        const thread &other = threads[first + lane];
        if (other.mask != t->mask || !same_place(other, *t))
            return false; /* it waits elsewhere; if nothing else helps, report_barrier says so */
        lanes[lane] = other.operands;
    }
    if (t->complete)
        t->complete(lanes);
    w.waiting &= ~needed;
    for (uint32_t rest = needed; rest; rest &= rest - 1) {
        thread *other = &threads[first + (uint32_t)__builtin_ctz(rest)];
        if (other != caller)
            make_ready(other);
    }
    return true;
}

static void end_thread(thread *t)
{
    warp &w = warps[t->number / 32];
    t->state = ENDED;
    live--;
    w.live &= ~(1u << t->number % 32);
    for (uint32_t rest = w.waiting; rest; rest &= rest - 1) /* they may have waited for this one */
        if (uint32_t lane = (uint32_t)__builtin_ctz(rest); w.waiting >> lane & 1)
            complete_collective(&threads[t->number / 32 * 32 + lane], nullptr);
}

static void fiber_body()
{
    fiber *self = idle.back();
    for (;;) {
        idle.pop_back();
        do {
            thread *t = &threads[order[begun++]];
            t->stack = self;
            make_current(t);
            current_launch->closure->call();
            pipeline_end_thread();
            end_thread(t);
        } while (begun < order.size() && (ready.empty() || random_below(2)));
        idle.push_back(self);
        fiber *next = choose();
        if (next != self)
            fiber_switch(self, next);
    }
}

static fiber *idle_fiber()
{
    if (idle.empty())
        idle.push_back(fiber_create(fiber_body));
    return idle.back();
}

static void run_block(const launch &launch, uint32_t block)
{
    blockIdx = {block % launch.grid.x, block / launch.grid.x % launch.grid.y, block / launch.grid.x / launch.grid.y};
    uint32_t count = (uint32_t)threads.size();
    for (thread &t : threads)
        t.state = NEW;
    for (uint32_t i = 0; i < warps.size(); i++)
        warps[i] = {count - i * 32 >= 32 ? 0xffffffffu : (1u << (count - i * 32)) - 1, 0};
    shuffle(order);
    begun = at_barrier = 0;
    live = count;
    barrier_predicates = 0;
    shared_begin_block();
    fiber_switch(fiber_of_host(), idle_fiber());
    shared_end_block();
}

void run_kernel(const launch &launch)
{
    uint32_t count = launch.block.x * launch.block.y * launch.block.z;
    gridDim = launch.grid;
    blockDim = launch.block;
    threads.assign(count, thread());
    order.resize(count);
    for (uint32_t i = 0; i < count; i++) {
        threads[i].number = order[i] = i;
        threads[i].index = {i % blockDim.x, i / blockDim.x % blockDim.y, i / blockDim.x / blockDim.y};
    }
    warps.resize((count + 31) / 32);
    std::vector<uint32_t> blocks(launch.grid.x * launch.grid.y * launch.grid.z);
    for (uint32_t i = 0; i < blocks.size(); i++)
        blocks[i] = i;
    shuffle(blocks);
    current_launch = &launch;
    shared_begin_launch(launch);
    check_begin_launch();
    device_open();
    for (uint32_t block : blocks)
        run_block(launch, block);
    current_launch = nullptr;
    device_close(("kernel " + launch.name).c_str());
    launch_count++;
    cupti_kernel(launch.name);
}

} // namespace standin

using namespace standin;

uint64_t standin_launches(void)
{
    return launch_count;
}

unsigned standin_lane(void)
{
    return current->number % 32;
}

unsigned standin_live_lanes(void)
{
    return warps[current->number / 32].live;
}

void standin_warp_collective(const char *what, unsigned mask, void *operands, void (*complete)(void *lanes[32]),
                             const char *file, int line)
{
    thread *t = current;
    if (!(mask >> t->number % 32 & 1))
        fail("%s (%s:%d): the mask 0x%08x does not name the calling lane %u", what, file, line, mask, t->number % 32);
    t->what = what, t->file = file, t->line = line;
    t->mask = mask, t->operands = operands, t->complete = complete;
    t->state = WAIT_WARP;
    warps[t->number / 32].waiting |= 1u << t->number % 32;
    if (complete_collective(t, t))
        t->state = RUNNING;
    else
        wait(t);
}

int standin_block_barrier(const char *what, int predicate, const char *file, int line)
{
    thread *t = current;
    t->what = what, t->file = file, t->line = line;
    t->state = WAIT_BLOCK;
    barrier_predicates += predicate;
    if (++at_barrier < threads.size()) {
        wait(t);
        return t->predicates;
    }
    for (const thread &other : threads)
        if (!same_place(other, *t))
            report_barrier();
    for (thread &other : threads) {
        other.predicates = barrier_predicates;
        if (&other != t)
            make_ready(&other);
    }
    at_barrier = 0;
    barrier_predicates = 0;
    t->state = RUNNING;
    return t->predicates;
}
