# What a KV budget is full of when requests wait, by the way memory is taken: tokens, room inside sequences, memory outside of
# them. Below, what blocks cost in time: a decode step over paged caches against one block, in the same run.
load 'plots/style.gp'

all = ''; ticks = ''; full = 0; place = 0
name_of(unused) = strcol('policy') eq 'paged' ? "paged\n".strcol('block_size') : strcol('policy')
stats csv using (all = add_word(all, @row_key), ticks = ticks.'"'.name_of(0).'" ', full = full + known(num('used_bytes')), 0) nooutput
share(percent) = num(percent) * num('allocated_bytes') / num('budget_bytes')

# Kwon et al. 2023, figure 2: KV memory that holds tokens, reserved at the longest length (Orca (Max)) and in blocks of 16 (vLLM).
published(unused) = strcol('policy') eq 'reserved' ? 20.4 : strcol('policy') eq 'paged' && num('block_size') == 16 ? 96.3 : NaN

times = results.'/'.name.'_blocks.csv'
contexts = ''; smallest = 1e9; largest = 1.0; low = 1.0; high = 1.0; intervals = 0
if (rows(times)) {
    paged_only(x) = strcol('cache') eq 'paged' ? x : NaN
    stats times using (contexts = add_word(contexts, strcol('context')), smallest = smaller(smallest, paged_only(num('block_size'))), \
        largest = bigger(largest, paged_only(num('block_size'))), low = smaller(low, num('ratio_to_one_block')), \
        high = bigger(high, num('ratio_to_one_block')), intervals = intervals + known(num('ratio_low')), 0) nooutput
}
pick(c, x) = strcol('context') eq c ? paged_only(x) : NaN

do for [format in 'png svg'] {
    eval open_picture(format, 1000, 900)
    set multiplot
    unset logscale
    set lmargin 11; set rmargin 4

    set origin 0, 0.42; set size 1, 0.58
    set title 'A KV budget while requests wait for it: '.heading(all)
    set ylabel '% of the budget'
    set xlabel ' ' # room for the second line of the tics
    set xrange [-0.7 : words(ticks) - 0.3]
    set yrange [0 : 118]
    set ytics 0, 20, 100
    set grid noxtics
    set key outside bottom center horizontal maxrows 3 samplen 2.5 width 1 font font.',12'
    unset xtics
    set xtics () nomirror rotate by 0 font font.',12'
    do for [i = 1:words(ticks)] { set xtics add (word(ticks, i) i - 1) }
    set boxwidth 0.74
    plot csv using 0:(share('utilization_percent') + share('internal_waste_percent') + share('external_waste_percent')) with boxes \
             lc rgb orange lw 1.5 fs pattern 4 border lc rgb orange title 'external: taken, no sequence holds it', \
         csv using 0:(share('utilization_percent') + share('internal_waste_percent')) with boxes \
             lc rgb '#f3d9a0' lw 1.5 fs solid 1 border lc rgb orange title 'internal: held by a sequence, empty', \
         csv using 0:(share('utilization_percent')) with boxes lc rgb blue lw 1.5 fs solid 0.8 border lc rgb blue title 'tokens', \
         csv using 0:(num('predicted_utilization_percent')) with points lc rgb black pt 2 ps 1.3 lw 2 \
             title 'formula: tokens, from the lengths of the trace', \
         csv using 0:(published(0)) with points ls 5 ps 2 lw 2 title 'published: Kwon et al. 2023, figure 2 (OPT-13B, its own trace)', \
         csv using 0:(full ? 106 : -1):(sprintf("%.1f", num('mean_concurrent'))) with labels font font.',11' \
             title 'above the bars: requests held at once, on average'

    set origin 0, 0; set size 1, 0.42
    unset title
    set ylabel 'time of a decode step / one block'
    set xlabel 'tokens per block'
    set xrange [smallest / 1.5 : largest * 1.5]
    set logscale x 2
    set xtics auto nomirror rotate by 0 font font.',13'
    set format x '%.0f'
    span = bigger(high - low, 0.02)
    set yrange [low - 0.3 * span : high + 0.6 * span]
    set ytics autofreq
    set format y '%.2f'
    set grid xtics
    set key inside right top vertical
    if (rows(times)) {
        plot times using (paged_only(num('block_size'))):(num('predicted_ratio')) with lines ls 1 \
                 title 'formula: bytes read and written, block tables included', \
             for [i = 1:words(contexts)] times using (pick(word(contexts, i), num('block_size'))):(num('ratio_to_one_block')): \
                 (intervals ? num('ratio_low') : num('ratio_to_one_block')):(intervals ? num('ratio_high') : num('ratio_to_one_block')) \
                 with yerrorbars lc rgb colour(i) lw 2 pt 0 notitle, \
             for [i = 1:words(contexts)] times using (pick(word(contexts, i), num('block_size'))):(num('ratio_to_one_block')) \
                 with linespoints lc rgb colour(i) lw 1 dt (4,4) pt point(i) ps 1.4 \
                 title commas(int(word(contexts, i)[1:*])).' tokens: median and its 95 % interval'
    }
    unset multiplot
    unset output
}
