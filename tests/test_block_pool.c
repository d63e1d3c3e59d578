/* Blocks as numbers: reference counts, the order in which blocks are taken and content is given up, and finding content
   by its tokens. */
#include "engine/block_pool.h"
#include "engine/prefix_cache.h"
#include "tests/support.h"

static struct error error;

static void free_blocks_are_taken_before_content(void **state)
{
    (void)state;
    struct block_pool pool;
    check_ok(block_pool_init(&pool, 4, &error));
    for (int block = 0; block < 4; block++)
        assert_int_equal(block_pool_take(&pool), block);
    assert_int_equal(block_pool_take(&pool), -1);
    block_pool_set_findable(&pool, 1, true);
    block_pool_set_findable(&pool, 2, true);
    block_pool_release(&pool, 2);
    block_pool_release(&pool, 1);
    block_pool_release(&pool, 0);
    assert_int_equal(pool.unreferenced, 3);
    assert_int_equal(pool.cached, 2);
    assert_int_equal(block_pool_take(&pool), 0); /* without content */
    assert_int_equal(block_pool_take(&pool), 2); /* released before block 1 */
    assert_int_equal(pool.cached, 1);
    assert_false(pool.findable[2]);
    block_pool_free(&pool);
}

/* A block that is used again moves to the end of the queue. */
static void least_recently_used_content_goes_first(void **state)
{
    (void)state;
    struct block_pool pool;
    check_ok(block_pool_init(&pool, 3, &error));
    for (int block = 0; block < 3; block++) {
        assert_int_equal(block_pool_take(&pool), block);
        block_pool_set_findable(&pool, block, true);
        block_pool_release(&pool, block);
    }
    block_pool_share(&pool, 0);
    assert_int_equal(pool.unreferenced, 2);
    block_pool_share(&pool, 0);
    assert_int_equal(pool.references[0], 2);
    block_pool_release(&pool, 0);
    assert_int_equal(pool.unreferenced, 2); /* still held once */
    block_pool_release(&pool, 0);
    assert_int_equal(block_pool_take(&pool), 1);
    assert_int_equal(block_pool_take(&pool), 2);
    assert_int_equal(block_pool_take(&pool), 0);
    block_pool_free(&pool);
}

/* Content that is forgotten while nobody holds it makes its block the next to be taken. */
static void forgotten_content_is_taken_first(void **state)
{
    (void)state;
    struct block_pool pool;
    check_ok(block_pool_init(&pool, 2, &error));
    for (int block = 0; block < 2; block++) {
        assert_int_equal(block_pool_take(&pool), block);
        block_pool_set_findable(&pool, block, true);
        block_pool_release(&pool, block);
    }
    block_pool_set_findable(&pool, 1, false);
    assert_int_equal(pool.cached, 1);
    assert_int_equal(block_pool_take(&pool), 1);
    block_pool_free(&pool);
}

static const int32_t red[] = {1, 2, 3}, green[] = {1, 2, 4}, blue[] = {7, 7, 7};

static void content_is_found_after_its_parent_only(void **state)
{
    (void)state;
    struct prefix_cache cache;
    check_ok(prefix_cache_init(&cache, 8, 3, &error));
    assert_int_equal(prefix_cache_find(&cache, PREFIX_START, red), -1);
    prefix_cache_add(&cache, PREFIX_START, red, 5);
    prefix_cache_add(&cache, 5, blue, 0);
    assert_int_equal(prefix_cache_find(&cache, PREFIX_START, red), 5);
    assert_int_equal(prefix_cache_find(&cache, PREFIX_START, green), -1);
    assert_int_equal(prefix_cache_find(&cache, PREFIX_START, blue), -1); /* the same tokens in another place */
    assert_int_equal(prefix_cache_find(&cache, 5, blue), 0);
    assert_int_equal(prefix_cache_find(&cache, 0, blue), -1);
    prefix_cache_free(&cache);
}

/* Block 5 is evicted and gets other content: what came after the old content is not found after the new one, also where
   the new content is the old one again. */
static void children_of_evicted_content_are_not_found(void **state)
{
    (void)state;
    struct prefix_cache cache;
    check_ok(prefix_cache_init(&cache, 8, 3, &error));
    prefix_cache_add(&cache, PREFIX_START, red, 5);
    prefix_cache_add(&cache, 5, blue, 0);
    prefix_cache_forget(&cache, 5);
    prefix_cache_forget(&cache, 5); /* no effect */
    assert_int_equal(prefix_cache_find(&cache, PREFIX_START, red), -1);
    prefix_cache_add(&cache, PREFIX_START, green, 5);
    assert_int_equal(prefix_cache_find(&cache, 5, blue), -1);
    prefix_cache_forget(&cache, 5);
    prefix_cache_add(&cache, PREFIX_START, red, 5);
    assert_int_equal(prefix_cache_find(&cache, 5, blue), -1);
    prefix_cache_add(&cache, 5, blue, 1);
    assert_int_equal(prefix_cache_find(&cache, 5, blue), 1);
    prefix_cache_forget(&cache, 0); /* the one that nobody can find */
    assert_int_equal(prefix_cache_find(&cache, 5, blue), 1);
    prefix_cache_free(&cache);
}

/* Entries of equal hash and other tokens, which a collision would make: the tokens decide. */
static void equal_hashes_prove_nothing(void **state)
{
    (void)state;
    struct prefix_cache cache;
    check_ok(prefix_cache_init(&cache, 8, 3, &error));
    prefix_cache_add(&cache, PREFIX_START, red, 3);
    cache.tokens[3 * 3 + 1] = 9;
    assert_int_equal(prefix_cache_find(&cache, PREFIX_START, red), -1);
    prefix_cache_add(&cache, PREFIX_START, red, 4);
    assert_true(cache.entries[3].hash == cache.entries[4].hash);
    assert_int_equal(prefix_cache_find(&cache, PREFIX_START, red), 4);
    prefix_cache_free(&cache);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(free_blocks_are_taken_before_content),
        cmocka_unit_test(least_recently_used_content_goes_first),
        cmocka_unit_test(forgotten_content_is_taken_first),
        cmocka_unit_test(content_is_found_after_its_parent_only),
        cmocka_unit_test(children_of_evicted_content_are_not_found),
        cmocka_unit_test(equal_hashes_prove_nothing),
    };
    return cmocka_run_group_tests_name("block_pool", tests, NULL, NULL);
}
