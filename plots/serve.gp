# Closed and open load: what users wait, over the requests served per second; below, requests in flight in the first and the
# second half of each run.
load 'plots/style.gp'

all = ''; most = 0.0; slowest = 0.0; fastest = 1e18; crowd = 0.0; loads = 0
stats csv using (all = add_word(all, @row_key), most = bigger(most, num('requests_per_s')), \
    slowest = bigger(slowest, num('e2e_ms_p99')), fastest = smaller(fastest, num('ttft_ms_p50')), loads = loads + 1, \
    crowd = bigger(bigger(crowd, num('in_flight_first_half')), num('in_flight_second_half')), 0) nooutput
of(kind, value) = strcol('load') eq kind ? value : NaN
level(unused) = strcol('load') eq 'closed' ? strcol('level').(num('level') == 1 ? ' user' : ' users') : strcol('level').' %'

do for [format in 'png svg'] {
    eval open_picture(format, 1000, 860)
    set multiplot
    set lmargin 11; set rmargin 4

    set origin 0, 0.42; set size 1, 0.58
    set title 'Requests through the continuous scheduler: '.heading(all)
    set ylabel 'ms'
    set xlabel 'requests served per second'
    set logscale y
    set format y '%.10g'
    set xrange [0 : most * 1.15]
    set yrange [fastest / 2 : slowest * 3]
    set key above center vertical maxrows 2 font font.',12'
    plot csv using (of('closed', num('requests_per_s'))):(num('e2e_ms_p50')) with points lc rgb blue lw 2 pt 6 ps 1.7 title 'closed: E2E, median', \
         csv using (of('closed', num('requests_per_s'))):(num('ttft_ms_p50')) with points lc rgb blue lw 2 pt 2 ps 1.5 title 'closed: TTFT, median', \
         csv using (of('open', num('requests_per_s'))):(num('e2e_ms_p50')) with points lc rgb orange lw 2 pt 8 ps 1.7 title 'open: E2E, median', \
         csv using (of('open', num('requests_per_s'))):(num('ttft_ms_p50')) with points lc rgb orange lw 2 pt 1 ps 1.5 title 'open: TTFT, median', \
         csv using (num('requests_per_s')):(num('e2e_ms_p99')) with points lc rgb grey lw 2 pt 12 ps 1.3 title 'E2E, 99th percentile', \
         csv using (num('requests_per_s')):(num('e2e_ms_p99')):(level(0)) with labels offset 0, 0.9 font font.',11' notitle

    set origin 0, 0; set size 1, 0.42
    unset title; unset logscale y
    set ylabel 'requests in flight'
    set xlabel 'load: users, or percent of the capacity'
    set format y '%g'
    set ytics tic_step(crowd)
    set xrange [-0.6 : loads - 0.4]
    set yrange [0 : crowd * 1.4]
    set boxwidth 0.36
    set style fill solid 0.55 border lc rgb black
    set key above center vertical maxrows 2
    plot csv using ($0 - 0.19):(num('in_flight_first_half')) with boxes lc rgb green title 'first half of the time of arrivals, counted', \
         csv using ($0 + 0.19):(num('in_flight_second_half')) with boxes lc rgb purple fs pattern 4 title 'second half, counted', \
         csv using ($0):(num('requests_per_s') * num('e2e_ms_mean') / 1e3):xtic(level(0)) with points lc rgb black lw 2 pt 1 ps 1.4 title "by Little's law: rate * mean E2E"
    unset multiplot
    unset output
}
