/* Which model rows belong to: folders of one name may hold different ones, and --resume must not mix them. */
#include "bench/harness/output.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

uint64_t model_config_hash(const struct config *c)
{
    const struct rope_llama3 none = {0}, *rope = c->has_rope_llama3 ? &c->rope_llama3 : &none;
    char text[1024];
    int length =
        snprintf(text, sizeof text,
                 "%d %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64
                 " %.17g %.17g %d %.17g %.17g %.17g %" PRId64 " %d %d %d %d %" PRId64 " %" PRId64 " %s",
                 (int)c->family, c->vocab_size, c->hidden_size, c->intermediate_size, c->num_hidden_layers,
                 c->num_attention_heads, c->num_key_value_heads, c->head_dim, c->max_position_embeddings,
                 c->rms_norm_eps, c->rope_theta, c->has_rope_llama3, rope->factor, rope->low_freq_factor,
                 rope->high_freq_factor, rope->original_max_position_embeddings, c->tie_word_embeddings, c->qkv_bias,
                 c->o_bias, c->mlp_bias, c->sliding_window, c->max_window_layers, dtype_name(c->torch_dtype));
    return bench_checksum(text, (size_t)length);
}

static int is_weights(const struct dirent *entry)
{
    size_t length = strlen(entry->d_name), ending = sizeof ".safetensors" - 1;
    return length > ending && strcmp(entry->d_name + length - ending, ".safetensors") == 0;
}

uint64_t model_weights_hash(const char *folder)
{
    struct dirent **entries;
    int count = scandir(folder, &entries, is_weights, alphasort);
    char *text = NULL;
    size_t size = 0;
    FILE *stream = open_memstream(&text, &size);
    for (int i = 0; i < count; i++) {
        struct stat facts;
        char *path = NULL;
        if (stream && asprintf(&path, "%s/%s", folder, entries[i]->d_name) >= 0 && stat(path, &facts) == 0)
            fprintf(stream, "%s %lld %lld.%09ld\n", entries[i]->d_name, (long long)facts.st_size,
                    (long long)facts.st_mtim.tv_sec, facts.st_mtim.tv_nsec);
        free(path);
        free(entries[i]);
    }
    if (count >= 0)
        free(entries);
    bool whole = stream && fclose(stream) == 0;
    uint64_t hash = whole ? bench_checksum(text, size) : 0;
    free(text);
    return hash;
}
