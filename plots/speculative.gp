# Speculative decoding over the draft length: tokens per pass of the target, and speed-up against plain decoding beside
# it; lines predict from the acceptance rate at one proposed token, points are measured. Greedy and sampled.
load 'plots/style.gp'

all = ''; longest = 0.0; tallest = 1.0; fastest = 1.0; drafts = ''
stats csv using (all = add_word(all, @row_key), longest = bigger(longest, num('draft_tokens')), \
    tallest = bigger(bigger(tallest, num('tokens_per_target_pass')), num('predicted_tokens_per_pass')), \
    fastest = bigger(bigger(fastest, num('speedup')), num('predicted_speedup')), \
    drafts = add_word(drafts, strcol('draft')), 0) nooutput
series = words(all) * 2   # each greedy and sampled
row_of(i) = word(all, (i + 1) / 2)
heat(i) = (i + 1) % 2
way(i) = (heat(i) ? 'sampled' : 'greedy').(words(all) > 1 ? ', '.row_of(i) : '')
pick(i, value) = num('temperature') == heat(i) ? in_series(row_of(i), value) : NaN
draft_names = words(drafts) == 1 ? 'draft '.word(drafts, 1).', ' : ''

do for [format in 'png svg'] {
    eval open_picture(format, 1000, 860)
    set multiplot
    set lmargin 10; set rmargin 4
    set xrange [-0.4 : longest + 0.4]
    set xtics 1
    set key above center vertical maxrows 2 samplen 4 font font.',12'

    set origin 0, 0.52; set size 1, 0.48
    set title 'A draft proposes, the target judges: '.draft_names.'target '.heading(all)
    set ylabel 'tokens per pass of the target'
    set yrange [0 : tallest * 1.08]
    unset xlabel
    plot for [i = 1:series] csv using (pick(i, num('draft_tokens'))):(num('predicted_tokens_per_pass')) \
             with lines lc rgb grey lw 2.5 dt i title 'formula from k = 1: '.way(i), \
         for [i = 1:series] csv using (pick(i, num('draft_tokens'))):(num('tokens_per_target_pass')) \
             with points lc rgb colour(i) lw 2 pt point(i) ps 1.5 title 'counted: '.way(i)

    set origin 0, 0; set size 1, 0.52
    unset title
    set key maxrows 3
    set ylabel 'speed-up against plain decoding'
    set yrange [0 : fastest * 1.08]
    set xlabel 'tokens proposed per pass, k'
    plot for [i = 1:series] csv using (pick(i, num('draft_tokens'))):(num('predicted_speedup')) \
             with lines lc rgb grey lw 2.5 dt i title 'formula: '.way(i), \
         for [i = 1:series] csv using (pick(i, num('draft_tokens'))):(num('predicted_speedup_at_pass_cost')) \
             with lines lc rgb colour(i) lw 1.5 dt i title 'with the pass as it costs: '.way(i), \
         for [i = 1:series] csv using (pick(i, num('draft_tokens'))):(num('speedup')) \
             with points lc rgb colour(i) lw 2 pt point(i) ps 1.5 title 'measured: '.way(i), \
         1 with lines lc rgb black lw 1 dt (1,3) notitle
    unset multiplot
    unset output
}
