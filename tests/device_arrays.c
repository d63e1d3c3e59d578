#include "tests/device_arrays.h"

const enum dtype all_types[TYPES] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};

static const char *const variants[VARIANTS] = {"portable", "avx2", "avx512", "avx512_bf16"};

int testing_cpu(void)
{
    const char *name = getenv("KVLAB_TEST_DEVICE");
    return !name || strcmp(name, "cpu") == 0;
}

struct device *open_variant(size_t i, int threads)
{
    struct device *device;
    struct error error;
    const char *name = getenv("KVLAB_TEST_DEVICE");
    if (name && strcmp(name, "cpu") != 0) {
        if (i > 0)
            return NULL;
    } else {
        name = "cpu";
        setenv("KVLAB_CPU", variants[i], 1);
    }
    enum status status = device_open(name, threads, &device, &error);
    if (status == STATUS_OK)
        return device;
    if (i == 0)
        fail_msg("%s", error.message);
    assert_int_equal(status, STATUS_INPUT);
    return NULL;
}

/* ---- seeded random numbers */

static uint64_t random_state;
static uint32_t random_bits(void)
{
    random_state += 0x9e3779b97f4a7c15u; /* SplitMix64 (Steele et al. 2014) */
    uint64_t z = random_state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ (z >> 31)) >> 32);
}
void random_seed(uint64_t seed)
{
    random_state = seed;
}
int random_int(int low, int high)
{
    return low + (int)(random_bits() % (uint32_t)(high - low + 1));
}
float random_unit(void)
{
    return (float)((int32_t)random_bits() >> 8) * 0x1p-23f;
}

/* ---- arrays in device memory, with a host copy and guards of NaNs (all bits 1) around them */

void *array_memory(const struct array *a)
{
    return a->memory + GUARD_BYTES + a->skew;
}
char *array_host(const struct array *a)
{
    return a->host + GUARD_BYTES + a->skew;
}
double array_at(const struct array *a, size_t i)
{
    return (double)dtype_load(a->dtype, array_host(a), i);
}

void array_push(struct array *a)
{
    CHECK(a->device->ops->upload(a->device, a->memory, a->host, a->total_bytes, &error));
}

struct array array_make(struct device *device, enum dtype dtype, size_t count, size_t skew)
{
    struct array a = {device, dtype, count, count * dtype_size(dtype), 0, skew, NULL, NULL};
    void *memory;
    a.total_bytes = 2 * GUARD_BYTES + skew + a.bytes;
    a.host = malloc(a.total_bytes);
    assert_non_null(a.host);
    memset(a.host, 0xff, a.total_bytes);
    CHECK(device->ops->alloc(device, a.total_bytes, &memory, &error));
    a.memory = memory;
    array_push(&a);
    return a;
}

struct array array_random(struct device *device, enum dtype dtype, size_t count, size_t skew, float scale)
{
    struct array a = array_make(device, dtype, count, skew);
    for (size_t i = 0; i < count; i++)
        dtype_store(dtype, array_host(&a), i, random_unit() * scale);
    array_push(&a);
    return a;
}

/* 32-bit integers live in an array of f32's size. */
struct array array_integers(struct device *device, const int32_t *values, size_t count)
{
    struct array a = array_make(device, DTYPE_F32, count, 0);
    memcpy(array_host(&a), values, count * sizeof *values);
    array_push(&a);
    return a;
}

void array_pull(struct array *a, const char *what)
{
    CHECK(a->device->ops->synchronize(a->device, &error));
    CHECK(a->device->ops->download(a->device, a->host, a->memory, a->total_bytes, &error));
    for (size_t i = 0; i < a->total_bytes; i++) {
        if (i >= GUARD_BYTES + a->skew && i < GUARD_BYTES + a->skew + a->bytes)
            continue;
        if ((unsigned char)a->host[i] != 0xff)
            fail_msg("%s: wrote byte %ld, outside its %zu bytes", what, (long)i - GUARD_BYTES - (long)a->skew,
                     a->bytes);
    }
}

void array_drop(struct array *a)
{
    a->device->ops->release(a->device, a->memory, a->total_bytes);
    free(a->host);
}

double unit_roundoff(enum dtype dtype)
{
    static const double units[] = {
        [DTYPE_F32] = 0x1p-24, [DTYPE_F16] = 0x1p-11, [DTYPE_BF16] = 0x1p-8, [DTYPE_FP8_E4M3] = 0x1p-4};
    assert_true(dtype < DTYPE_INT8);
    return units[dtype];
}

static double allowed(const struct array *a, double expected, double slack)
{
    double floor = a->dtype == DTYPE_F16 ? 0x1p-25 : a->dtype == DTYPE_FP8_E4M3 ? 0x1p-10 : 0x1p-126;
    return slack + unit_roundoff(a->dtype) * (fabs(expected) + slack) + floor;
}

int value_matches(const struct array *a, size_t index, double expected, double slack)
{
    return fabs(array_at(a, index) - expected) <= allowed(a, expected, slack);
}

void check_value(const struct array *a, size_t index, double expected, double slack, const char *what)
{
    double got = array_at(a, index), tolerance = allowed(a, expected, slack);
    if (!(fabs(got - expected) <= tolerance))
        fail_msg("%s %s [%zu]: %.9g instead of %.9g, off by %.3g, allowed %.3g (%s)", what, dtype_name(a->dtype), index,
                 got, expected, fabs(got - expected), tolerance, a->device->info.features);
}

void check_same(const struct array *a, const struct array *b, const char *what)
{
    for (size_t i = 0; i < a->count; i++) {
        size_t size = dtype_size(a->dtype);
        if (memcmp(array_host(a) + i * size, array_host(b) + i * size, size) != 0)
            fail_msg("%s %s [%zu]: %.9g with one thread, %.9g with two (%s)", what, dtype_name(a->dtype), i,
                     array_at(a, i), array_at(b, i), a->device->info.features);
    }
}

void use_workspace(struct device *device, const struct workspace_shape *shape, struct array *workspace)
{
    size_t bytes = device->ops->workspace_bytes(device, shape);
    *workspace = array_make(device, DTYPE_F16, (bytes + 1) / 2, 0);
    device->ops->set_workspace(device, array_memory(workspace), bytes);
}

void drop_workspace(struct device *device, struct array *workspace)
{
    array_pull(workspace, "workspace");
    array_drop(workspace);
    device->ops->set_workspace(device, NULL, 0);
}

void on_every_variant(void (*check)(struct device *device))
{
    for (size_t i = 0; i < VARIANTS; i++) {
        for (int threads = 1; threads <= 2; threads++) {
            struct device *device = open_variant(i, threads);
            if (!device)
                continue;
            random_seed(7);
            check(device);
            device->ops->close(device);
        }
    }
}
