# Time per output token over context, for each batch: median and p10 to p90, against bytes read / read bandwidth. Below,
# the bandwidth that this makes, as a share of the read bandwidth measured in the same run.
load 'plots/style.gp'

all = ''; groups = ''
largest = 0.0; tallest = 0.0; spread = 0.0; share = 100.0; spreads = 0; shares = 0; predictions = 0
group(unused) = strcol('batch').'|'.@row_key
batch_of(g) = g[1 : strstrt(g, '|') - 1]
series_of(g) = g[strstrt(g, '|') + 1 : *]
stats csv using (all = add_word(all, @row_key), groups = add_word(groups, group(0)), \
    largest = bigger(largest, num('context')), share = bigger(share, num('percent_of_read_ceiling')), \
    tallest = bigger(tallest, num('tpot_ms_p50')), spread = bigger(spread, num('tpot_ms_p90')), \
    tallest = bigger(tallest, num('predicted_ms')), spreads = spreads + known(num('tpot_ms_p10')), \
    shares = shares + known(num('percent_of_read_ceiling')), predictions = predictions + known(num('predicted_ms')), 0) nooutput
tallest = bigger(tallest, smaller(2 * tallest, spread)) # a p90 of a disturbed run is cut off, rather than flatten the rest
pick(g, value) = group(0) eq g ? value : NaN

# Each batch's fitted rise, for the legend (of one series; the fit does not name several). A slope whose interval holds
# zero is said to be unresolved, not quoted.
fitted(unused) = strcol('resolved') eq 'yes' \
    ? sprintf(': +%s ns per token of context (95 %% %s to %s; predicted %s)', short(num('slope_ns_per_token')), \
        short(num('ci95_low')), short(num('ci95_high')), short(num('predicted_ns_per_token'))) \
    : sprintf(': rise not resolved from noise (predicted %s ns per token)', short(num('predicted_ns_per_token')))
titles = ''
do for [i = 1:words(groups)] {
    found = ''
    if (words(all) == 1 && rows(fit)) {
        stats fit using (found = strcol('batch') eq batch_of(word(groups, i)) ? fitted(0) : found, 0) nooutput
    }
    titles = titles.'"'.(words(all) > 1 ? series_of(word(groups, i)).', ' : '').'batch '.batch_of(word(groups, i)).found.'" '
}

# The lesson's own times (batch 1, prompt length as context) stand only beside the same model on a GPU.
published = lessons.'/phases.csv'
same = strstrt(all, '"qwen2.5-1.5b, cuda') > 0

do for [format in 'png svg'] {
    eval open_picture(format, 1000, 800)
    set multiplot
    set lmargin 11; set rmargin 3
    set xrange [0 : largest * 1.05]

    set origin 0, 0.32; set size 1, 0.68
    set title 'Time per output token over context: '.heading(all)
    set ylabel 'TPOT, ms (median, p10 to p90)'
    unset xlabel
    set format x ''
    set yrange [0 : tallest * (1.2 + 0.07 * words(groups))]
    set ytics autofreq
    set key left top
    plot for [i = 1:words(groups)] csv using (pick(word(groups, i), num('context'))):(given(predictions, num('predicted_ms'))) \
             with linespoints ls 1 pt 2 ps 0.8 title i == 1 ? 'formula: (weight bytes + KV bytes) / read bandwidth' : '', \
         for [i = 1:words(groups)] csv using (pick(word(groups, i), num('context'))):(num('tpot_ms_p50')): \
             (spreads ? num('tpot_ms_p10') : num('tpot_ms_p50')):(spreads ? num('tpot_ms_p90') : num('tpot_ms_p50')) with yerrorbars lc rgb colour(i) lw 2 pt 0 notitle, \
         for [i = 1:words(groups)] csv using (pick(word(groups, i), num('context'))):(num('tpot_ms_p50')) \
             with points lc rgb colour(i) pt point(i) ps 1.4 title word(titles, i), \
         published using (num('prompt_tokens')):(same ? num('tpot_ms_p50') : -1) with points ls 5 \
             title same ? 'published: Qwen2.5-1.5B bf16, RTX 3060, batch 1' : ''

    set origin 0, 0; set size 1, 0.32
    unset title
    unset key
    set ylabel 'read ceiling, %'
    set xlabel 'context, tokens'
    set format x '%.0f'
    set yrange [0 : share * 1.1]
    set ytics share > 200 ? tic_step(share) : 25
    plot 100 with lines ls 1, \
         for [i = 1:words(groups)] csv using (pick(word(groups, i), num('context'))):(shares ? num('percent_of_read_ceiling') : -1) \
             with linespoints lc rgb colour(i) lw 1 dt (4,4) pt point(i) ps 1.4
    unset multiplot
    unset output
}
