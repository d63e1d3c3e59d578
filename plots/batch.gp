# Static batches: time per output token over the batch, on the roofs that reading and arithmetic make, and the batch at which
# they cross (the machine's balance point); below, tokens per second of all requests together and of each.
load 'plots/style.gp'

all = ''; groups = ''; largest = 1.0; lowest = 1e18; highest = 0.0; slowest = 1e18; fastest = 0.0; predictions = 0
group(unused) = strcol('context').'|'.@row_key
context_of(g) = g[1 : strstrt(g, '|') - 1]
series_of(g) = g[strstrt(g, '|') + 1 : *]
stats csv using (all = add_word(all, @row_key), groups = add_word(groups, group(0)), largest = bigger(largest, num('batch')), \
    lowest = smaller(smaller(lowest, num('tpot_ms')), num('predicted_tpot_ms')), \
    highest = bigger(bigger(highest, num('tpot_ms')), num('predicted_tpot_ms')), \
    slowest = smaller(slowest, num('tokens_per_s_per_request')), fastest = bigger(fastest, num('tokens_per_s')), \
    predictions = predictions + known(num('predicted_tpot_ms')), 0) nooutput
pick(g, value) = group(0) eq g ? value : NaN
label(g) = (words(all) > 1 ? series_of(g).', ' : '').(words(groups) > words(all) ? context_of(g).' tokens' : '')
join(what, g) = strlen(label(g)) ? what.' ('.label(g).')' : what
what_for = words(groups) == words(all) ? ', prompts of '.context_of(word(groups, 1)).' tokens' : ''

# Where the roofs cross, and where the measured time left its floor: of the first context.
summary = results.'/'.name.'_summary.csv'
balance = NaN; balance_batch = NaN; leaves = NaN; floor_ms = NaN
if (rows(summary)) {
    stats summary using (floor_ms = known(floor_ms) ? floor_ms : num('floor_tpot_ms'), \
        balance = known(balance) ? balance : num('balance_flop_per_byte'), \
        balance_batch = known(balance_batch) ? balance_batch : num('balance_batch'), \
        leaves = known(leaves) ? leaves : num('leaves_floor_batch'), 0) nooutput
}
reach = bigger(largest, smaller(balance_batch, largest * 4))

# The lesson's own batches stand only beside the same model on a GPU.
published = lessons.'/batch.csv'
same = strstrt(all, '"qwen2.5-1.5b, cuda') > 0
if (same) { lowest = smaller(lowest, 18); highest = bigger(highest, 33); slowest = smaller(slowest, 30); fastest = bigger(fastest, 3900); reach = bigger(reach, 128) }

do for [format in 'png svg'] {
    eval open_picture(format, 1000, 860)
    set multiplot
    set lmargin 12; set rmargin 4
    set logscale xy
    set xrange [0.8 : reach * 1.3]
    do for [i = 0:20] { if (i == 0) { set xtics (sprintf('%g', 2**i) 2**i) } else { set xtics add (sprintf('%g', 2**i) 2**i) } }

    set origin 0, 0.42; set size 1, 0.58
    set title 'Time per output token over the batch: '.heading(all).what_for
    set ylabel 'TPOT, ms'
    unset xlabel
    set format y '%.10g'
    set yrange [lowest / 1.5 : highest * 1.8]
    set key above center vertical maxrows 3 samplen 3 font font.',12'
    if (known(balance_batch)) {
        set arrow 1 from balance_batch, graph 0 to balance_batch, graph 1 nohead lc rgb purple lw 2 dt (9,4,2,4)
        set label 1 sprintf('balance: %s FLOP/byte at batch %d ', short(balance), balance_batch) at balance_batch, graph 0.06 right font font.',12'
    }
    if (known(leaves)) {
        set label 2 sprintf('over 1.5 times the floor from batch %d on ', leaves) at leaves, graph 0.94 right font font.',12'
        set arrow 2 from leaves, graph 0.98 to leaves, graph 0.88 head filled size screen 0.008,20 lc rgb black
    }
    plot for [i = 1:words(groups)] csv using (pick(word(groups, i), num('batch'))):(given(predictions, num('predicted_tpot_ms'))) \
             with lines ls 1 title i == 1 ? 'formula: reading or computing' : '', \
         floor_ms with lines lc rgb black lw 1 dt (2,4) title known(floor_ms) ? 'floor: the smallest batch' : '', \
         for [i = 1:words(groups)] csv using (pick(word(groups, i), num('batch'))):(num('tpot_ms')) \
             with linespoints lc rgb colour(i) lw 2 pt point(i) ps 1.4 title join('measured, median', word(groups, i)), \
         published using (num('batch')):(same ? num('tpot_ms') : 1e-9) with points ls 5 \
             title same ? 'published: Qwen2.5-1.5B bf16, RTX 3060' : ''

    unset arrow; unset label
    set origin 0, 0; set size 1, 0.42
    unset title
    set ylabel 'tokens per second'
    set xlabel 'batch, requests'
    set yrange [slowest / 1.6 : fastest * 1.6]
    plot for [i = 1:words(groups)] csv using (pick(word(groups, i), num('batch'))):(num('tokens_per_s')) \
             with linespoints lc rgb colour(i) lw 2 pt point(i) ps 1.4 title join('all requests together', word(groups, i)), \
         for [i = 1:words(groups)] csv using (pick(word(groups, i), num('batch'))):(num('tokens_per_s_per_request')) \
             with linespoints lc rgb colour(i) lw 2 dt (6,4) pt point(i) - 1 ps 1.4 title join('each request', word(groups, i)), \
         published using (num('batch')):(same ? num('tokens_per_s') : 1e-9) with points ls 5 \
             title same ? 'published' : ''
    unset multiplot
    unset output
}
