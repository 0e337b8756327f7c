"""Cities, by which hidden numbers are named: none is a part of another, or a common word."""

_CITIES = """
Aachen Aalborg Aberdeen Abidjan Abuja Accra Adelaide Agadir Ajaccio Akureyri Albany Aleppo Algiers Alicante
Almaty Amiens Amman Ancona Andorra Ankara Antalya Antwerp Arequipa Arnhem Ashgabat Asmara Astana Asuncion
Atlanta Auckland Augsburg Avignon Badajoz Baghdad Baku Baltimore Bamako Bandung Bangkok Banjul Baoding Barcelona
Basel Basra Beirut Belfast Belgrade Belmopan Bergamo Bergen Berlin Bern Bilbao Birmingham Bishkek Bissau
Blantyre Bogota Boise Bologna Bolzano Bordeaux Boston Brasilia Bratislava Bremen Brescia Brisbane Bristol Brno
Brussels Bucharest Budapest Bursa Busan Bydgoszcz Cadiz Cagliari Cairo Calgary Cambridge Canberra Cancun Caracas
Cardiff Cartagena Casablanca Catania Cayenne Changsha Charleston Chennai Chengdu Chicago Chisinau Cincinnati
Cleveland Cologne Colombo Conakry Copenhagen Cordoba Coventry Cracow Curitiba Cuzco Dakar Dallas Damascus Dayton
Debrecen Delhi Denver Detroit Dhaka Dijon Djibouti Dodoma Doha Dortmund Dover Dresden Dubai Dublin Dunedin
Durban Dushanbe Edinburgh Edmonton Eindhoven Entebbe Erfurt Esztergom Faro Ferrara Florence Fortaleza Frankfurt
Freetown Fresno Fukuoka Funchal Gaborone Galway Gdansk Geneva Genoa Georgetown Ghent Glasgow Gothenburg Granada
Graz Grenoble Groningen Guadalajara Guangzhou Guayaquil Haifa Halifax Hamburg Hangzhou Hanoi Hanover Harare
Harbin Hartford Havana Helsinki Hiroshima Hobart Honolulu Houston Hyderabad Incheon Indianapolis Innsbruck
Ipswich Irkutsk Islamabad Istanbul Izmir Jaipur Jakarta Jerusalem Johannesburg Juba Kabul Kampala Kanpur Karachi
Karlsruhe Kassel Kathmandu Katowice Kaunas Kazan Khartoum Kiel Kigali Kingston Kinshasa Klagenfurt Kobe Kolkata
Kosice Kyoto Lagos Lahore Lausanne Leeds Leicester Leiden Leipzig Libreville Liege Lille Lilongwe Lima Limerick
Linz Lisbon Liverpool Ljubljana Lodz Lome Louisville Luanda Lublin Lucerne Lugano Lusaka Luxor Lyon Maastricht
Macau Madrid Malaga Malmo Manama Managua Manaus Manchester Mandalay Manila Mannheim Maputo Maracaibo Marrakesh
Marseille Maseru Mbabane Medellin Melbourne Memphis Mendoza Merida Messina Miami Milan Milwaukee Minneapolis
Minsk Modena Mogadishu Mombasa Monaco Monrovia Monterrey Montevideo Montpellier Montreal Moroni Moscow Mumbai
Munich Murcia Muscat Nagasaki Nagoya Nairobi Nanjing Nantes Naples Nashville Nassau Newcastle Niamey Nicosia
Norwich Nottingham Nouakchott Novosibirsk Nuremberg Oakland Odense Odessa Okinawa Omaha Oran Orlando Osaka Oslo
Ottawa Ouagadougou Oviedo Oxford Padua Palermo Panama Paramaribo Parma Patras Perth Perugia Philadelphia
Pittsburgh Plovdiv Plymouth Podgorica Poitiers Portland Porto Poznan Prague Pretoria Pristina Pyongyang Quebec
Quito Rabat Raleigh Ravenna Recife Reims Rennes Reykjavik Riga Rimini Rochester Rosario Rostock Rotterdam Rouen
Sacramento Salamanca Salerno Salzburg Samarkand Sapporo Sarajevo Saskatoon Seattle Segovia Sendai Seoul Seville
Shanghai Sheffield Shenzhen Siena Singapore Skopje Sofia Southampton Stavanger Stockholm Strasbourg Stuttgart
Sucre Surabaya Swansea Sydney Szczecin Szeged Tabriz Taipei Tallinn Tampa Tampere Tangier Tartu Tashkent Tbilisi
Tehran Thessaloniki Thimphu Tirana Tokyo Toledo Toronto Toulon Toulouse Trento Trieste Tripoli Tromso Trondheim
Tucson Tulsa Tunis Turin Turku Uppsala Utrecht Vaduz Valencia Valladolid Valparaiso Vancouver Varna Venice
Verona Vienna Vientiane Vilnius Vladivostok Warsaw Wellington Wichita Windhoek Winnipeg Wolfsburg Wroclaw Wuhan
Wuppertal Yangon Yaounde Yerevan Yokohama Zagreb Zanzibar Zaragoza Zurich
"""
NAMES = tuple(_CITIES.split())
