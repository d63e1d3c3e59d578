# One request over the length of its prompt: time to first token and time per output token; below, tokens per second as a
# brochure prints them (decode alone) and as the user feels them (the whole request).
load 'plots/style.gp'

all = ''; groups = ''; longest = 0.0; shortest = 1e18; p95s = 0; lowest = 1e18; highest = 0.0
group(unused) = strcol('new_tokens').'|'.@row_key
tokens_of(g) = g[1 : strstrt(g, '|') - 1]
series_of(g) = g[strstrt(g, '|') + 1 : *]
stats csv using (all = add_word(all, @row_key), groups = add_word(groups, group(0)), \
    longest = bigger(longest, num('prompt_tokens')), shortest = smaller(shortest, num('prompt_tokens')), \
    lowest = smaller(smaller(lowest, num('tpot_ms_p50')), num('ttft_ms')), highest = bigger(highest, num('e2e_ms')), \
    p95s = p95s + known(num('tpot_ms_p95')), 0) nooutput
pick(g, value) = group(0) eq g ? value : NaN
label(g) = (words(all) > 1 ? series_of(g).', ' : '').(words(groups) > words(all) ? tokens_of(g).' new tokens' : '')
join(what, g) = strlen(label(g)) ? what.' ('.label(g).')' : what
what_for = words(groups) == words(all) ? ', '.tokens_of(word(groups, 1)).' new tokens' : ''

# The lesson's own request stands only beside the same model on a GPU.
published = lessons.'/phases.csv'
same = strstrt(all, '"qwen2.5-1.5b, cuda') > 0
if (same) { longest = bigger(longest, 4096); shortest = smaller(shortest, 64); lowest = smaller(lowest, 17) }

do for [format in 'png svg'] {
    eval open_picture(format, 1000, 860)
    set multiplot
    set lmargin 12; set rmargin 4
    set logscale xy
    set xrange [shortest / 1.25 : longest * 1.25]
    set xtics autofreq
    do for [i = 0:20] { if (i == 0) { set xtics (sprintf('%g', 2**i) 2**i) } else { set xtics add (sprintf('%g', 2**i) 2**i) } }

    set origin 0, 0.46; set size 1, 0.54
    set title 'One request over its prompt: '.heading(all).what_for
    set ylabel 'ms'
    set yrange [lowest / 1.6 : highest * 1.6]
    unset xlabel
    set format y '%.10g'
    set key above center vertical maxrows 3 samplen 3 font font.',12'
    plot for [i = 1:words(groups)] csv using (pick(word(groups, i), num('prompt_tokens'))):(num('e2e_ms')) \
             with points lc rgb black lw 2 pt 1 ps 1.7 title join('whole request', word(groups, i)), \
         for [i = 1:words(groups)] csv using (pick(word(groups, i), num('prompt_tokens'))):(num('e2e_predicted_ms')) \
             with lines ls 1 dt i title join('TTFT + (N - 1) * TPOT', word(groups, i)), \
         for [i = 1:words(groups)] csv using (pick(word(groups, i), num('prompt_tokens'))):(num('ttft_ms')) \
             with linespoints lc rgb orange lw 2 dt i pt 9 ps 1.4 title join('TTFT', word(groups, i)), \
         for [i = 1:words(groups)] csv using (pick(word(groups, i), num('prompt_tokens'))):(num('tpot_ms_p50')) \
             with linespoints lc rgb blue lw 2 dt i pt 6 ps 1.4 title join('TPOT, median', word(groups, i)), \
         for [i = 1:words(groups)] csv using (pick(word(groups, i), num('prompt_tokens'))):(p95s ? num('tpot_ms_p95') : 1e-9) \
             with points lc rgb blue lw 2 pt 2 ps 1.2 title p95s ? join('TPOT, p95', word(groups, i)) : '', \
         published using (num('prompt_tokens')):(same ? num('ttft_s') * 1e3 : 1e-9) with points ls 5 \
             title same ? 'published: Qwen2.5-1.5B bf16, RTX 3060' : '', \
         published using (num('prompt_tokens')):(same ? num('tpot_ms_p50') : 1e-9) with points ls 5 notitle

    set origin 0, 0; set size 1, 0.46
    unset title
    set ylabel 'tokens per second'
    set yrange [*:*]
    set xlabel 'prompt, tokens'
    plot for [i = 1:words(groups)] csv using (pick(word(groups, i), num('prompt_tokens'))):(num('prefill_tokens_per_s')) \
             with linespoints lc rgb orange lw 2 dt i pt 9 ps 1.4 title join('prefill alone', word(groups, i)), \
         for [i = 1:words(groups)] csv using (pick(word(groups, i), num('prompt_tokens'))):(num('decode_tokens_per_s')) \
             with linespoints lc rgb blue lw 2 dt i pt 6 ps 1.4 title join('decode alone: a brochure', word(groups, i)), \
         for [i = 1:words(groups)] csv using (pick(word(groups, i), num('prompt_tokens'))):(num('effective_tokens_per_s')) \
             with linespoints lc rgb black lw 2 dt i pt 5 ps 1.4 title join('whole request: the user', word(groups, i))
    unset multiplot
    unset output
}
