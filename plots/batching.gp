# Static against continuous batching at equal slots: tokens per second over the four cells; below, who had which slot of the
# mixed load, step by step, by both policies on one axis.
load 'plots/style.gp'

timeline = results.'/'.name.'_timeline.csv'
all = ''; fastest = 0.0; most_steps = 1.0; slots = 1.0
speed_of(p, l) = (strcol('policy') eq p && strcol('load') eq l) ? num('tokens_per_s') : NaN
static_same = NaN; static_mixed = NaN; continuous_same = NaN; continuous_mixed = NaN
idle_static = NaN; idle_continuous = NaN
keep(old, new) = known(new) ? new : old
stats csv using (all = add_word(all, @row_key), fastest = bigger(fastest, num('tokens_per_s')), \
    most_steps = bigger(most_steps, strcol('load') eq 'mixed' ? num('steps') : 1), slots = bigger(slots, num('slots')), \
    static_same = keep(static_same, speed_of('static', 'same')), static_mixed = keep(static_mixed, speed_of('static', 'mixed')), \
    continuous_same = keep(continuous_same, speed_of('continuous', 'same')), \
    continuous_mixed = keep(continuous_mixed, speed_of('continuous', 'mixed')), 0) nooutput
at_cell(unused) = (strcol('load') eq 'mixed' ? 3 : 0) + (strcol('policy') eq 'static' ? 0 : 1)
gain(a, b) = known(a) && known(b) ? sprintf('%s times static', short(b / a)) : ''

# Rectangles of one policy's mixed load, shaded by the output's length.
shade(tokens) = tokens <= shortest ? 0xe69f00 : tokens <= second ? 0x56b4e9 : tokens <= third ? 0x009e73 : 0x0072b2
shortest = 0; second = 0; third = 0; longest = 0
if (rows(timeline)) {
    # The four lengths come in turn: those of requests 0 to 3.
    stats timeline using (strcol('load') eq 'mixed' ? ( \
        shortest = num('request') == 0 ? num('output_tokens') : shortest, second = num('request') == 1 ? num('output_tokens') : second, \
        third = num('request') == 2 ? num('output_tokens') : third, longest = num('request') == 3 ? num('output_tokens') : longest, 0) : 0) nooutput
}
mine(p) = strcol('load') eq 'mixed' && strcol('policy') eq p

do for [format in 'png svg'] {
    eval open_picture(format, 1000, 900)
    set multiplot
    set lmargin 11; set rmargin 4

    set origin 0, 0.60; set size 1, 0.40
    set title 'Batching at '.commas(int(slots)).' slots: '.heading(all)
    set ylabel 'tokens per second'
    set yrange [0 : fastest * 1.45]
    set xrange [-0.7 : 4.7]
    set xtics ("static,\nsame length" 0, "continuous,\nsame length" 1, "static,\nmixed lengths" 3, "continuous,\nmixed lengths" 4)
    set boxwidth 0.72
    set style fill solid 0.55 border lc rgb black
    set key right top
    if (known(static_same) && known(continuous_same)) { set label 1 gain(static_same, continuous_same) at 1, continuous_same + fastest * 0.21 center font font.',12' }
    if (known(static_mixed) && known(continuous_mixed)) { set label 2 gain(static_mixed, continuous_mixed) at 4, continuous_mixed + fastest * 0.21 center font font.',12' }
    set label 3 'published gains: 1.47 (same) and 2.98 (mixed), of another engine as well as another scheduler' at graph 0.01, 0.95 left font font.',11'
    plot csv using (at_cell(0)):(num('tokens_per_s')):(strcol('policy') eq 'static' ? 0xd55e00 : 0x0072b2) with boxes lc rgb variable notitle, \
         csv using (at_cell(0)):(num('tokens_per_s') + fastest * 0.09):(sprintf('%.1f %% of cells idle', num('idle_cells_percent'))) \
             with labels font font.',11' notitle
    unset label

    if (rows(timeline)) {
        set xtics autofreq
        set format x ''
        set xrange [0 : most_steps]
        set yrange [slots - 0.4 : -0.6]
        set ytics 0, bigger(1, int(slots / 4))
        set style fill solid 0.9 border lc rgb 'white'
        do for [i = 0:1] {
            policy = word('static continuous', i + 1)
            set origin 0, 0.315 - i * 0.315; set size 1, i ? 0.315 : 0.285
            set title policy.', mixed lengths: who has which slot' offset 0, -0.6
            set ylabel 'slot'
            if (i) { set format x '%.0f'; set xlabel 'step (forward pass)' } else { unset xlabel }
            set key at graph 0.995, 0.97 right top font font.',11' samplen 1 opaque
            plot timeline using (mine(policy) ? (num('first_step') + num('last_step') + 1) / 2 : NaN):(num('slot')): \
                     (num('first_step')):(num('last_step') + 1):(num('slot') - 0.42):(num('slot') + 0.42):(shade(num('output_tokens'))) \
                     with boxxyerror lc rgb variable notitle, \
                 NaN with boxes lc rgb 0xe69f00 title i ? commas(int(shortest)).' tokens' : '', \
                 NaN with boxes lc rgb 0x56b4e9 title i ? commas(int(second)) : '', \
                 NaN with boxes lc rgb 0x009e73 title i ? commas(int(third)) : '', \
                 NaN with boxes lc rgb 0x0072b2 title i ? commas(int(longest)) : ''
        }
    }
    unset multiplot
    unset output
}
