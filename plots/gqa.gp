# One model with its number of KV heads changed: cache bytes per token, and time per output token at a long context, both over
# the heads. MQA is the first point, MHA the last; the model as published is one of those between.
load 'plots/style.gp'

all = ''; groups = ''; most = 1.0; tallest = 0.0; bytes_most = 0.0; spreads = 0; predictions = 0
group(unused) = strcol('context').'|'.@row_key
context_of(g) = g[1 : strstrt(g, '|') - 1]
series_of(g) = g[strstrt(g, '|') + 1 : *]
stats csv using (all = add_word(all, @row_key), groups = add_word(groups, group(0)), most = bigger(most, num('num_key_value_heads')), \
    tallest = bigger(tallest, num('tpot_ms_p50')), tallest = bigger(tallest, num('predicted_ms')), \
    tallest = bigger(tallest, smaller(num('tpot_ms_p90'), 3 * num('tpot_ms_p50'))), \
    bytes_most = bigger(bytes_most, num('bytes_per_token')), spreads = spreads + known(num('tpot_ms_p90')), \
    predictions = predictions + known(num('predicted_ms')), 0) nooutput
pick(g, value) = group(0) eq g ? value : NaN

# Slopes for the legend, of one series.
bytes_said = ''
fitted(unused) = strcol('resolved') eq 'yes' \
    ? sprintf(': +%s ms per head (95 %% %s to %s; predicted %s)', short(num('slope_per_kv_head')), short(num('ci95_low')), \
        short(num('ci95_high')), short(num('predicted_slope'))) \
    : sprintf(': rise not resolved from noise (predicted %s ms per head)', short(num('predicted_slope')))
titles = ''
do for [i = 1:words(groups)] {
    found = ''
    if (words(all) == 1 && rows(fit)) {
        stats fit using (bytes_said = strcol('quantity') eq 'bytes_per_token' ? sprintf(': %s bytes per head', tenths(num('slope_per_kv_head'))) : bytes_said, \
            found = strcol('quantity') eq 'tpot_ms' && strcol('context') eq context_of(word(groups, i)) ? fitted(0) : found, 0) nooutput
    }
    titles = titles.'"'.(words(all) > 1 ? series_of(word(groups, i)).', ' : '').commas(int(context_of(word(groups, i))[1:*])).' tokens'.found.'" '
}

do for [format in 'png svg'] {
    eval open_picture(format, 1000, 800)
    set multiplot
    set lmargin 11; set rmargin 4
    set xrange [0 : most * 1.08]
    set xtics autofreq
    set key left top

    set origin 0, 0.57; set size 1, 0.43
    set title 'The same model with other KV heads: '.heading(all)
    set ylabel 'KiB per token'
    unset xlabel
    set yrange [0 : bytes_most / KiB * 1.3]
    plot for [i = 1:words(groups)] csv using (pick(word(groups, i), num('num_key_value_heads'))):(num('bytes_per_token_formula') / KiB) \
             with lines ls 1 title i == 1 ? 'formula: 2 * layers * KV heads * head_dim * bytes' : '', \
         for [i = 1:words(groups)] csv using (pick(word(groups, i), num('num_key_value_heads'))):(num('bytes_per_token') / KiB) \
             with points ls 2 title i == 1 ? 'tensors'.bytes_said : '', \
         csv using (num('num_key_value_heads')):(num('bytes_per_token') / KiB):(strcol('kind')) \
             with labels offset -0.6, 1.1 font font.',11' notitle

    set origin 0, 0; set size 1, 0.57
    unset title
    set ylabel 'TPOT, ms (median, p10 to p90)'
    set xlabel 'KV heads'
    set yrange [0 : tallest * (1.25 + 0.07 * words(groups))]
    plot for [i = 1:words(groups)] csv using (pick(word(groups, i), num('num_key_value_heads'))):(given(predictions, num('predicted_ms'))) \
             with linespoints ls 1 pt 2 ps 0.8 title i == 1 ? 'formula: bytes read / read bandwidth' : '', \
         for [i = 1:words(groups)] csv using (pick(word(groups, i), num('num_key_value_heads'))):(num('tpot_ms_p50')): \
             (spreads ? num('tpot_ms_p10') : num('tpot_ms_p50')):(spreads ? num('tpot_ms_p90') : num('tpot_ms_p50')) \
             with yerrorbars lc rgb colour(i) lw 2 pt 0 notitle, \
         for [i = 1:words(groups)] csv using (pick(word(groups, i), num('num_key_value_heads'))):(num('tpot_ms_p50')) \
             with points lc rgb colour(i) pt point(i) ps 1.4 title word(titles, i)
    unset multiplot
    unset output
}
