/* Vision towers whose parameters a config describes in full: they are loaded with the text model and weigh with it. */
#include "engine/plan/plan_count.h"
#include "engine/plan/shape_read.h"

/* Keys of vision_config, which is read apart from the text model's. */
static enum status tower_count(struct reader *reader, const json_t *tower, const char *key, int64_t otherwise,
                               int64_t *value)
{
    struct config_keys keys = {
        .object = tower, .path = reader->keys.path, .within = "vision_config.", .error = reader->keys.error};
    *value = otherwise;
    if (otherwise && !config_key(&keys, key))
        return STATUS_OK;
    return config_count(&keys, key, 1 << 16, value);
}

static const json_t *find_tower(struct reader *reader)
{
    const json_t *tower = json_object_get(reader->root, "vision_config");
    shape_ignore(reader, "vision_config");
    return json_is_object(tower) ? tower : NULL;
}

static void add(struct reader *reader, uint64_t parameters)
{
    struct shape *shape = reader->shape;
    shape->parts.vision = count_add(&reader->overflow, shape->parts.vision, parameters);
    shape->edges.first = count_add(&reader->overflow, shape->edges.first, parameters);
}

/* A layer of a ViT: q, k, v, out with biases, two matrices with biases, two LayerNorms. Widths are at most 2^16. */
static uint64_t vit_layer(uint64_t hidden, uint64_t inner)
{
    return 4 * (hidden * hidden + hidden) + 2 * hidden * inner + inner + hidden + 4 * hidden;
}

/* SigLIP (modeling_siglip.py): patch embedding with bias, a position per patch, a last LayerNorm, no pooling head; then
   Gemma 3's projector (modeling_gemma3.py): a norm of the tower's width and one matrix to the text's. */
enum status vision_siglip(struct reader *reader)
{
    const json_t *tower = find_tower(reader);
    int64_t hidden, inner, layers, image, patch;
    if (!tower)
        return STATUS_OK;
    if (tower_count(reader, tower, "hidden_size", 0, &hidden) != STATUS_OK ||
        tower_count(reader, tower, "intermediate_size", 0, &inner) != STATUS_OK ||
        tower_count(reader, tower, "num_hidden_layers", 0, &layers) != STATUS_OK ||
        tower_count(reader, tower, "image_size", 0, &image) != STATUS_OK ||
        tower_count(reader, tower, "patch_size", 0, &patch) != STATUS_OK)
        return reader->keys.error->status;
    uint64_t h = (uint64_t)hidden, patches = (uint64_t)((image / patch) * (image / patch));
    uint64_t pixels = 3 * (uint64_t)(patch * patch);
    add(reader, pixels * h + h + patches * h + 2 * h);
    add(reader, count_mul(&reader->overflow, (uint64_t)layers, vit_layer(h, (uint64_t)inner)));
    add(reader, h + h * (uint64_t)reader->shape->hidden_size);
    return STATUS_OK;
}

/* Llama 4 (modeling_llama4.py): a linear patch embedding without bias, a class token, positions for it and each patch,
   LayerNorms before and after; an adapter of two matrices after pixel shuffle; one matrix to the text's width. */
enum status vision_llama4(struct reader *reader)
{
    const json_t *tower = find_tower(reader);
    int64_t hidden, inner, layers, image, patch, shuffled, output;
    if (!tower)
        return STATUS_OK;
    if (tower_count(reader, tower, "hidden_size", 0, &hidden) != STATUS_OK ||
        tower_count(reader, tower, "intermediate_size", 0, &inner) != STATUS_OK ||
        tower_count(reader, tower, "num_hidden_layers", 0, &layers) != STATUS_OK ||
        tower_count(reader, tower, "image_size", 0, &image) != STATUS_OK ||
        tower_count(reader, tower, "patch_size", 0, &patch) != STATUS_OK ||
        tower_count(reader, tower, "projector_input_dim", 0, &shuffled) != STATUS_OK ||
        tower_count(reader, tower, "vision_output_dim", 0, &output) != STATUS_OK)
        return reader->keys.error->status;
    uint64_t h = (uint64_t)hidden, patches = (uint64_t)((image / patch) * (image / patch));
    add(reader, 3 * (uint64_t)(patch * patch) * h + h + (patches + 1) * h + 4 * h);
    add(reader, count_mul(&reader->overflow, (uint64_t)layers, vit_layer(h, (uint64_t)inner)));
    add(reader, (uint64_t)inner * (uint64_t)shuffled + (uint64_t)shuffled * (uint64_t)output);
    add(reader, (uint64_t)output * (uint64_t)reader->shape->hidden_size);
    return STATUS_OK;
}
