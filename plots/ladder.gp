# One workload through serving techniques added one at a time: the rate of each step with its gain over the one before, measured
# and predicted; below, what requests held of the cache's budget, and how many of them decoded together.
load 'plots/style.gp'

all = ''; ticks = ''; slowest = 1e18; fastest = 0.0; budget = NaN; most = 1.0
short_name(s) = s eq 'static batch' ? "static\nbatch" \
    : s eq 'continuous batch on reserved memory' ? "continuous,\nreserved" \
    : s eq 'continuous on paged memory' ? "continuous,\npaged" \
    : s eq '+ prefix cache' ? "+ prefix\ncache" : s eq '+ fp8 cache' ? "+ fp8\ncache" : s
stats csv using (all = add_word(all, @row_key), ticks = ticks.'"'.short_name(strcol('step')).'" ', \
    slowest = smaller(slowest, num('tokens_per_s')), fastest = bigger(fastest, num('tokens_per_s')), budget = num('kv_budget_bytes'), \
    most = bigger(bigger(most, num('mean_batch')), num('predicted_batch')), 0) nooutput

# The rate that each step would have, had it gained over the measured rate before it what arithmetic says.
before = NaN
expected(rate, gain) = (found = before * gain, before = rate, found)
above(rate, gain) = bigger(rate, expected(rate, gain))
gains(unused) = known(num('gain_over_previous')) ? sprintf("%s\nx %s", short(num('tokens_per_s')), short(num('gain_over_previous'))) \
                                                 : short(num('tokens_per_s'))

do for [format in 'png svg'] {
    eval open_picture(format, 1000, 880)
    set multiplot
    set lmargin 11; set rmargin 10
    set xrange [-0.7 : words(ticks) - 0.3]
    set xtics () nomirror rotate by 0 font font.',12'
    do for [i = 1:words(ticks)] { set xtics add (word(ticks, i) i - 1) }
    set boxwidth 0.62
    set grid noxtics

    unset y2tics
    unset y2label
    unset bmargin
    set key maxrows auto width 0
    set ytics nomirror
    set origin 0, 0.42; set size 1, 0.58
    set title 'Techniques added one at a time: '.heading(all)
    set ylabel 'tokens per second'
    set logscale y
    set yrange [slowest / 2 : fastest * 12]
    set key left top
    before = NaN
    plot csv using 0:(num('tokens_per_s')) with boxes lc rgb blue lw 1.5 fs solid 0.75 border lc rgb blue \
             title 'measured; above, the rate and the gain over the step before', \
         csv using 0:(expected(num('tokens_per_s'), num('predicted_gain'))) with points lc rgb black pt 2 ps 1.8 lw 2 \
             title 'formula: the rate before * the gain that bytes and FLOPs predict', \
         csv using 0:(above(num('tokens_per_s'), num('predicted_gain'))):(gains(0)) with labels offset 0, 1.6 font font.',11' notitle

    set origin 0, 0; set size 1, 0.42
    unset title
    set bmargin 3.5
    set key left top maxrows 2 width -2
    unset logscale y
    set ylabel 'KV cache held, MiB'
    set yrange [0 : budget / MiB * 1.5]
    set y2label 'sequences that decode together'
    set y2range [0 : most * 1.5]
    set y2tics nomirror
    plot csv using 0:(num('peak_kv_bytes') / MiB) with boxes lc rgb orange lw 1.5 fs solid 0.4 border lc rgb orange title 'most held at once', \
         budget / MiB with lines ls 1 title 'budget', \
         csv using 0:(num('mean_batch')) axes x1y2 with points lc rgb blue pt 6 ps 2 lw 2 title 'batch, on average (right)', \
         csv using 0:(num('predicted_batch')) axes x1y2 with points lc rgb black pt 2 ps 1.4 lw 2 title 'batch by formula (right)'
    unset multiplot
    unset output
}
