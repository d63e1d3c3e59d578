/* The CPU's matrix library works in the workspace that the ledger counts, or not at all. */
#include "tests/device_arrays.h"

enum { ROWS = 300, IN = 136, OUT = 520 };

static struct linear_args arguments(enum dtype dtype, struct array *x, struct array *w, struct array *y)
{
    return (struct linear_args){.x = array_memory(x),
                                .weight = array_memory(w),
                                .y = array_memory(y),
                                .dtype = dtype,
                                .out_dtype = y->dtype,
                                .rows = ROWS,
                                .in = IN,
                                .out = OUT};
}

/* What workspace_bytes() says for the most rows is enough for any fewer, in either type of result. The library's own
   need depends on the rows: it is not largest at the most rows. */
static void check_all_rows(struct device *device)
{
    for (size_t t = 0; t < TYPES; t++) {
        const struct workspace_shape shape = {all_types[t], all_types[t], ROWS, 1,  4, 2,
                                              34,           IN,           OUT,  OUT}; /* heads * head_dim is IN */
        struct array x = array_random(device, all_types[t], ROWS * IN, 0, 1.0f), workspace;
        struct array w = array_random(device, all_types[t], OUT * IN, 0, 1.0f);
        use_workspace(device, &shape, &workspace);
        for (int same = 0; same < 2; same++) {
            struct array y = array_make(device, same ? all_types[t] : DTYPE_F32, ROWS * OUT, 0);
            struct linear_args args = arguments(all_types[t], &x, &w, &y);
            for (args.rows = 17; args.rows <= ROWS; args.rows++)
                CHECK(device->ops->linear(device, &args, &error));
            array_pull(&y, "linear");
            array_drop(&y);
        }
        drop_workspace(device, &workspace);
        array_drop(&x);
        array_drop(&w);
    }
}

static void every_number_of_rows_fits_the_workspace(void **state)
{
    (void)state;
    if (!testing_cpu())
        skip();
    on_every_variant(check_all_rows);
}

static void check_refusal(struct device *device)
{
    struct array x = array_random(device, DTYPE_F32, ROWS * IN, 0, 1.0f);
    struct array w = array_random(device, DTYPE_F32, OUT * IN, 0, 1.0f);
    struct array y = array_make(device, DTYPE_F32, ROWS * OUT, 0);
    struct array workspace = array_make(device, DTYPE_F32, 32, 0);
    const struct linear_args args = arguments(DTYPE_F32, &x, &w, &y);
    struct error error;
    device->ops->set_workspace(device, array_memory(&workspace), workspace.bytes);
    assert_int_equal(device->ops->linear(device, &args, &error), STATUS_DEVICE);
    assert_non_null(strstr(error.message, "scratch"));
    assert_non_null(strstr(error.message, "300 x 136 x 520"));
    drop_workspace(device, &workspace);
    array_drop(&x);
    array_drop(&w);
    array_drop(&y);
}

static void too_small_a_workspace_is_refused(void **state)
{
    (void)state;
    if (!testing_cpu())
        skip();
    on_every_variant(check_refusal);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_number_of_rows_fits_the_workspace),
        cmocka_unit_test(too_small_a_workspace_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
