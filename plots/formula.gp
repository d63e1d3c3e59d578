# KV cache bytes per token of every model, with its key-value heads shared (as published) and without sharing.
load 'plots/style.gp'

# Only models that kvlab's forward pass runs: the CSV has many more.
models = ''; tics = ''; value_bytes = 0.0; smallest = 1e300; largest = 0.0
stats csv using (strcol('runs') eq 'yes' ? (models = models.strcol('model').' ', \
    tics = tics.sprintf('%s:%g ', strcol('model'), num('kv_bytes_per_token') / KiB), value_bytes = num('kv_bytes_per_token') / \
    (2.0 * num('num_hidden_layers') * num('num_key_value_heads') * num('head_dim')), \
    smallest = smaller(smallest, num('kv_bytes_per_token')), largest = bigger(largest, num('kv_bytes_per_token_mha')), 0) : 0) nooutput
position(model) = int(sum [i = 1:words(models)] (word(models, i) eq model ? i : 0))
at(model) = position(model) ? position(model) : NaN

# The lesson's published values, in KiB per token of bf16.
claims = lessons.'/claims.csv'
published(quantity) = strcol('lesson') eq 'kv-cache' && strcol('quantity') eq quantity && value_bytes == 2 \
    ? num('published') : NaN

do for [format in 'png svg'] {
    eval open_picture(format, 1100 + 22 * words(models), 700)
    set title sprintf('KV cache per token, from the config alone (%g bytes per value)', value_bytes)
    set ylabel 'KV cache, KiB per token (log scale)'
    set xrange [0.3 : words(models) + 0.7]
    set yrange [smallest / KiB / 2 : largest / KiB * 2]
    set logscale y 2
    set xlabel 'model, and its KiB per token'
    set xtics () rotate by 45 right
    set for [i = 1:words(tics)] xtics add (word(tics, i) i)
    set grid noxtics
    set rmargin 3
    set boxwidth 0.38
    set key above center horizontal
    plot csv using (at(strcol('model')) + 0.2):(num('kv_bytes_per_token_mha') / KiB):(sprintf('%gx', num('gqa_ratio'))) \
             with labels font font.',10' offset 0, 0.9 notitle, \
         csv using (at(strcol('model')) + 0.2):(num('kv_bytes_per_token_mha') / KiB) with boxes lc rgb orange lw 1.5 \
             fs pattern 4 border lc rgb orange title 'every query head with its own K and V', \
         csv using (at(strcol('model')) - 0.2):(num('kv_bytes_per_token') / KiB) with boxes lc rgb blue lw 1.5 fs solid 0.7 border lc rgb blue title 'as the model is: query heads share K and V', \
         claims using (at(strcol('model')) - 0.2):(published('kv_bytes_per_token')) with points ls 5 lw 2.5 lc rgb black \
             title 'published by the lesson', \
         claims using (at(strcol('model')) + 0.2):(published('kv_bytes_per_token_mha')) with points ls 5 lw 2.5 lc rgb black notitle
    unset output
}
