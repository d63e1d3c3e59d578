/* Barriers and warp collectives. Each remembers the place of its call, for the report when not all threads come. */
#ifndef STANDIN_COLLECTIVES_H
#define STANDIN_COLLECTIVES_H

#define STANDIN_PLACE     const char *file = __builtin_FILE(), int line = __builtin_LINE()
#define STANDIN_FULL_MASK 0xffffffffu

/* Waits until all threads of the block have come; the sum of their predicates. */
int standin_block_barrier(const char *what, int predicate, const char *file, int line);

/* Waits until the live lanes that mask names have come with the same mask, at the same place. The last of them calls
   complete(lanes): lanes[i] is lane i's operands, NULL for a lane that takes no part. */
void standin_warp_collective(const char *what, unsigned mask, void *operands, void (*complete)(void *lanes[32]),
                             const char *file, int line);
unsigned standin_lane(void);
void standin_whole_warp(const char *what, void *const lanes[32]); /* aborts if a lane takes no part */
[[noreturn]] void standin_misaligned_matrix(const char *what, const void *memory, unsigned leading);
unsigned standin_live_lanes(void);

static inline void __syncthreads(STANDIN_PLACE)
{
    standin_block_barrier("__syncthreads", 0, file, line);
}
static inline int __syncthreads_count(int predicate, STANDIN_PLACE)
{
    return standin_block_barrier("__syncthreads_count", predicate != 0, file, line);
}
static inline int __syncthreads_or(int predicate, STANDIN_PLACE)
{
    return standin_block_barrier("__syncthreads_or", predicate != 0, file, line) != 0;
}
static inline int __syncthreads_and(int predicate, STANDIN_PLACE)
{
    return standin_block_barrier("__syncthreads_and", predicate == 0, file, line) == 0;
}
static inline void __syncwarp(unsigned mask = STANDIN_FULL_MASK, STANDIN_PLACE)
{
    standin_warp_collective("__syncwarp", mask, nullptr, nullptr, file, line);
}
static inline unsigned __activemask()
{
    return standin_live_lanes(); /* as if the warp's threads ran together */
}
static inline void __threadfence()
{
}
static inline void __threadfence_block()
{
}
static inline void __threadfence_system()
{
}
static inline void __nanosleep(unsigned)
{
}

/* ---- shuffles */

struct standin_shuffle_lane {
    uint64_t value, result;
    unsigned source; /* the lane whose value this lane takes */
};
void standin_shuffle(void *lanes[32]);

/* Lane l's segment of `width` lanes begins at l & ~(width - 1). */
template <typename T>
T standin_shuffle_value(const char *what, unsigned mask, T value, unsigned source, const char *file, int line)
{
    static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>, "shuffles move 4 or 8 bytes");
    standin_shuffle_lane lane = {0, 0, source};
    memcpy(&lane.value, &value, sizeof value);
    standin_warp_collective(what, mask, &lane, standin_shuffle, file, line);
    memcpy((void *)&value, &lane.result, sizeof value);
    return value;
}
template <typename T> T __shfl_sync(unsigned mask, T value, int source, int width = 32, STANDIN_PLACE)
{
    unsigned first = standin_lane() & ~(unsigned)(width - 1);
    return standin_shuffle_value("__shfl_sync", mask, value, first + ((unsigned)source & (unsigned)(width - 1)), file,
                                 line);
}
template <typename T> T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, STANDIN_PLACE)
{
    unsigned lane = standin_lane(), place = lane & (unsigned)(width - 1);
    return standin_shuffle_value("__shfl_up_sync", mask, value, place >= delta ? lane - delta : lane, file, line);
}
template <typename T> T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, STANDIN_PLACE)
{
    unsigned lane = standin_lane(), place = lane & (unsigned)(width - 1);
    return standin_shuffle_value("__shfl_down_sync", mask, value, place + delta < (unsigned)width ? lane + delta : lane,
                                 file, line);
}
template <typename T> T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, STANDIN_PLACE)
{
    unsigned lane = standin_lane(), source = lane ^ (unsigned)lane_mask;
    unsigned end = (lane & ~(unsigned)(width - 1)) + (unsigned)width; /* a later segment's value cannot be had */
    return standin_shuffle_value("__shfl_xor_sync", mask, value, source < end ? source : lane, file, line);
}

/* ---- votes, matches and reductions of 32-bit values */

struct standin_reduce_lane {
    uint64_t value;
    unsigned result;
};
void standin_ballot(void *lanes[32]); /* result: the lanes whose value is not 0 */
void standin_match(void *lanes[32]);  /* result: the lanes with this lane's value */
void standin_sum(void *lanes[32]);
void standin_min(void *lanes[32]); /* of int64_t, so that it serves int and unsigned */
void standin_max(void *lanes[32]);
void standin_and(void *lanes[32]);
void standin_or(void *lanes[32]);
void standin_xor(void *lanes[32]);

static inline unsigned standin_reduce(const char *what, unsigned mask, int64_t value, void (*complete)(void *lanes[32]),
                                      const char *file, int line)
{
    standin_reduce_lane lane = {(uint64_t)value, 0};
    standin_warp_collective(what, mask, &lane, complete, file, line);
    return lane.result;
}
static inline unsigned __ballot_sync(unsigned mask, int predicate, STANDIN_PLACE)
{
    return standin_reduce("__ballot_sync", mask, predicate != 0, standin_ballot, file, line);
}
static inline int __any_sync(unsigned mask, int predicate, STANDIN_PLACE)
{
    return standin_reduce("__any_sync", mask, predicate != 0, standin_ballot, file, line) != 0;
}
static inline int __all_sync(unsigned mask, int predicate, STANDIN_PLACE)
{
    return standin_reduce("__all_sync", mask, predicate == 0, standin_ballot, file, line) == 0;
}
template <typename T> unsigned __match_any_sync(unsigned mask, T value, STANDIN_PLACE)
{
    int64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    return standin_reduce("__match_any_sync", mask, bits, standin_match, file, line);
}
#define STANDIN_REDUCE(type, operation)                                                                                \
    static inline type __reduce_##operation##_sync(unsigned mask, type value, STANDIN_PLACE)                           \
    {                                                                                                                  \
        return (type)standin_reduce("__reduce_" #operation "_sync", mask, value, standin_##operation, file, line);     \
    }
STANDIN_REDUCE(int, min)
STANDIN_REDUCE(unsigned, min)
STANDIN_REDUCE(int, max)
STANDIN_REDUCE(unsigned, max)
STANDIN_REDUCE(unsigned, and)
STANDIN_REDUCE(unsigned, or)
STANDIN_REDUCE(unsigned, xor)
#undef STANDIN_REDUCE
static inline int __reduce_add_sync(unsigned mask, int value, STANDIN_PLACE)
{
    return (int)standin_reduce("__reduce_add_sync", mask, value, standin_sum, file, line);
}
static inline unsigned __reduce_add_sync(unsigned mask, unsigned value, STANDIN_PLACE)
{
    return standin_reduce("__reduce_add_sync", mask, value, standin_sum, file, line);
}

#endif
