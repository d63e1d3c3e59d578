# A sliding window over the cache, for every window: bytes of the pool over context on the formula's lines; time per output
# token; perplexity of the same text.
load 'plots/style.gp'

all = ''; groups = ''; largest = 0.0; smallest = 1e18; most = 0.0; least = 1e18; slowest = 0.0; worst = 0.0; best = 1e18
scored = 0; timed = 0
group(unused) = strcol('window').'|'.@row_key
window_of(g) = g[1 : strstrt(g, '|') - 1]
series_of(g) = g[strstrt(g, '|') + 1 : *]
stats csv using (all = add_word(all, @row_key), groups = add_word(groups, group(0)), \
    largest = bigger(largest, num('context')), smallest = smaller(smallest, num('context')), \
    most = bigger(most, num('kv_formula_bytes')), least = smaller(least, num('kv_formula_bytes')), \
    slowest = bigger(slowest, num('tpot_ms_p50')), timed = timed + known(num('tpot_ms_p50')), \
    worst = bigger(worst, num('perplexity')), best = smaller(best, num('perplexity')), \
    scored = scored + known(num('perplexity')), 0) nooutput
pick(g, value) = group(0) eq g ? value : NaN
label(g) = (words(all) > 1 ? series_of(g).', ' : '').(window_of(g) eq '0' ? 'full attention' : 'window '.commas(int(window_of(g))))

do for [format in 'png svg'] {
    eval open_picture(format, 1000, 1000)
    set multiplot
    set lmargin 11; set rmargin 3
    set logscale x 2
    set xrange [smallest / 1.2 : largest * 1.2]
    set format x ''
    unset xlabel

    set origin 0, 0.60; set size 1, 0.40
    set title 'A sliding window over the cache: '.heading(all)
    set ylabel 'KV cache, MiB'
    set logscale y 2
    set format y '%g'
    set yrange [least / MiB / 1.5 : most / MiB * 8]
    set key left top
    plot for [i = 1:words(groups)] csv using (pick(word(groups, i), num('context'))):(num('kv_formula_bytes') / MiB) \
             with lines ls 1 title i == 1 ? 'formula: blocks that the window touches' : '', \
         for [i = 1:words(groups)] csv using (pick(word(groups, i), num('context'))):(num('kv_bytes') / MiB) \
             with points lc rgb colour(i) lw 2 pt point(i) ps 1.4 title 'ledger, '.label(word(groups, i))

    set origin 0, 0.33; set size 1, 0.29
    unset title
    unset key
    unset logscale y
    set ylabel 'TPOT, ms (median)'
    set yrange [0 : timed ? slowest * 1.15 : 1]
    plot for [i = 1:words(groups)] csv using (pick(word(groups, i), num('context'))):(given(timed, num('tpot_ms_p50'))) \
             with linespoints lc rgb colour(i) lw 2 dt (4,4) pt point(i) ps 1.4

    set origin 0, 0; set size 1, 0.35
    set ylabel 'perplexity per token'
    set xlabel 'context, tokens'
    set format x '%.0f'
    set yrange [scored ? best * 0.95 : 0 : scored ? worst * 1.05 : 1]
    if (!scored) { set label 1 'no perplexity: weights are synthetic' at graph 0.5, 0.5 center }
    plot for [i = 1:words(groups)] csv using (pick(word(groups, i), num('context'))):(given(scored, num('perplexity'))) \
             with linespoints lc rgb colour(i) lw 2 dt (4,4) pt point(i) ps 1.4
    unset label
    unset multiplot
    unset output
}
