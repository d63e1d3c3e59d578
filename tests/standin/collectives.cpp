/* What the last lane of a warp collective computes for all of them. */
#include "internal.h"

template <typename Lane, typename F> static void for_each(void *lanes[32], F f)
{
    for (unsigned i = 0; i < 32; i++)
        if (lanes[i])
            f(*(Lane *)lanes[i], i);
}

/* A lane that asks for the value of one that takes no part gets poison: the result is undefined on a GPU. */
void standin_shuffle(void *lanes[32])
{
    for_each<standin_shuffle_lane>(lanes, [lanes](standin_shuffle_lane &lane, unsigned) {
        if (lane.source < 32 && lanes[lane.source])
            lane.result = ((standin_shuffle_lane *)lanes[lane.source])->value;
        else
            standin::poison(&lane.result, sizeof lane.result);
    });
}

void standin_ballot(void *lanes[32])
{
    unsigned result = 0;
    for_each<standin_reduce_lane>(
        lanes, [&](standin_reduce_lane &lane, unsigned i) { result |= (lane.value != 0 ? 1u : 0u) << i; });
    for_each<standin_reduce_lane>(lanes, [&](standin_reduce_lane &lane, unsigned) { lane.result = result; });
}

void standin_match(void *lanes[32])
{
    for_each<standin_reduce_lane>(lanes, [lanes](standin_reduce_lane &lane, unsigned) {
        lane.result = 0;
        for_each<standin_reduce_lane>(lanes, [&lane](standin_reduce_lane &other, unsigned i) {
            lane.result |= (other.value == lane.value ? 1u : 0u) << i;
        });
    });
}

template <typename F> static void reduce(void *lanes[32], F f)
{
    bool first = true;
    int64_t result = 0;
    for_each<standin_reduce_lane>(lanes, [&](standin_reduce_lane &lane, unsigned) {
        result = first ? (int64_t)lane.value : f(result, (int64_t)lane.value);
        first = false;
    });
    for_each<standin_reduce_lane>(lanes, [&](standin_reduce_lane &lane, unsigned) { lane.result = (unsigned)result; });
}

void standin_sum(void *lanes[32])
{
    reduce(lanes, [](int64_t a, int64_t b) { return a + b; });
}

void standin_min(void *lanes[32])
{
    reduce(lanes, [](int64_t a, int64_t b) { return b < a ? b : a; });
}

void standin_max(void *lanes[32])
{
    reduce(lanes, [](int64_t a, int64_t b) { return a < b ? b : a; });
}

void standin_and(void *lanes[32])
{
    reduce(lanes, [](int64_t a, int64_t b) { return a & b; });
}

void standin_or(void *lanes[32])
{
    reduce(lanes, [](int64_t a, int64_t b) { return a | b; });
}

void standin_xor(void *lanes[32])
{
    reduce(lanes, [](int64_t a, int64_t b) { return a ^ b; });
}

void standin_misaligned_matrix(const char *what, const void *memory, unsigned leading)
{
    standin::fail("%s: a matrix at %p with rows %u apart: 32 bytes, and 16 bytes between rows, are the least alignment",
                  what, memory, leading);
}

void standin_whole_warp(const char *what, void *const lanes[32])
{
    for (int i = 0; i < 32; i++)
        if (!lanes[i])
            standin::fail("%s: lane %d takes no part", what, i);
}
